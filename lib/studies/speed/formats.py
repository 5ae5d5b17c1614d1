"""Speed, text, memory and the cost of a forward pass of one pair, by the number format of its weights."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os.path import commonprefix

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.attention.registration import tree_forward
from lib.cost import llama_cpp
from lib.cost.calibration import rows_of_text
from lib.cost.llama_cpp import LLAMA
from lib.cost.recommendation import NO_DRAFTER
from lib.drafters.drafter import ROOT_ALONE
from lib.lab import processor
from lib.lab.timing import LEAST_REPEATS, interleaved
from lib.models.cache import TreeCache
from lib.models.checks import DTYPES
from lib.models.fused import fused
from lib.models.load import Pair, load_pair
from lib.models.registry import sources
from lib.studies.drafters.measure import weights
from lib.studies.speed import measure
from lib.studies.speed.alternatives import OWN, PLAIN, drafted, llama
from lib.trees.tree import Tree

FORMATS = (("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("bfloat16", "int8"))  # dtype, quantised
STORED = ("float32", "stored")  # the numbers of a GGUF file
LOOP = "loop"  # the engine of this project's forward passes
NODES = (1, 2, 4, 8, 16, 32)
Format = tuple[str, str]


def load(name: str, device: str) -> dict[Format, Pair]:
    """A pair in each of FORMATS, and with the stored numbers of a target that is a GGUF file.

    Formats for which the device has no units are left out, since a prompt would take minutes.
    """
    target, drafter = sources(name)
    quantised = {each: each[1] for each in FORMATS if not processor.slow_dtype(DTYPES[each[0]], device)}
    if target.is_gguf:
        quantised[STORED] = "stored" if drafter is None else "stored|none"
    return {each: load_pair(name, dtype=each[0], device=device, quantize=own) for each, own in quantised.items()}


def compare(name: str, pairs: Mapping[Format, Pair], prompts, drafting: Sequence[tuple[str, str | Tree]], *,
            new_tokens: int, generator: torch.Generator) -> pd.DataFrame:
    """The table "formats": a pair in each format, plain and with each drafter and tree, on each prompt, in shuffled
    turns; llama.cpp decodes plainly where it can.

    name, pairs: as for and from `load`. prompts: `PromptSet`. `agreeing` compares with the first format. Greedy
    text in each format is that of the target in this format.
    """
    runs, measured = {}, list(pairs)
    for each, pair in pairs.items():
        runs[each, PLAIN] = drafted(PLAIN, pair, NO_DRAFTER, "", ROOT_ALONE, new_tokens)
        for spec, shape in drafting:
            runs[each, f"{spec}, {shape}"] = drafted(f"{spec}, {shape}", pair, spec, str(shape), shape, new_tokens)
    held = {each: {"target_weights": weights(pair.target),
                   "drafter_weights": weights(pair.draft_model) if pair.draft_model is not None else 0}
            for each, pair in pairs.items()}
    for other in llama(name, pairs[measured[0]], new_tokens):
        runs[STORED, other.name] = other
        held.setdefault(STORED, {"target_weights": llama_cpp.file_of(name).stat().st_size, "drafter_weights": 0})
    for run in runs.values():  # warm up
        run.run(prompts.ids[:1])
    rows = []
    for prompt, kind, ids in zip(prompts.names, prompts.kinds, prompts.ids):
        done, counts = {}, {}
        for at in torch.randperm(len(runs), generator=generator).tolist():
            key, start = list(runs)[at], time.perf_counter()
            done[key] = runs[key].run([ids])
            counts[key] = measure.counted(done[key], start, time.perf_counter())
        for (each, alternative), run in runs.items():
            beside = done.get((measured[0], alternative), done[measured[0], PLAIN])
            rows.append(dict(
                pair=name, batch=1, dtype=each[0], quantised=each[1], alternative=alternative, drafter=run.drafter,
                shape=run.shape, prompt=prompt, kind=kind, **held[each], **counts[each, alternative],
                agreeing=len(commonprefix([done[each, alternative].tokens[0], beside.tokens[0]]))))
    return pd.DataFrame(rows)


def passes(name: str, pairs: Mapping[Format, Pair], prompts: Sequence[Tensor], *, prefix: int, seconds: float,
           generator: torch.Generator) -> pd.DataFrame:
    """The table "format_costs": a forward pass of the target over NODES nodes of a chain after a prefix, in each
    format, and llama.cpp's over as many tokens where it can, in shuffled turns, which share `seconds` for each number
    of nodes.
    """
    tokens = rows_of_text(prompts, 1, prefix + max(NODES))
    ready = {(*each, LOOP): _passes(fused(pair.target), tokens, prefix) for each, pair in pairs.items()}
    if file := llama_cpp.file_of(name):
        ready[*STORED, LLAMA] = llama_cpp.passes(file, tokens[0].tolist(), prefix)
    rows = []
    for nodes in NODES:
        calls = {key: partial(run, nodes) for key, run in ready.items()}
        timed = interleaved(calls, repeats=60, seconds=seconds, generator=generator)
        late = {key: calls[key] for key, own in timed.items() if not own.repeats}  # a stall of the machine took the time
        timed |= interleaved(late, repeats=LEAST_REPEATS, seconds=math.inf, generator=generator)
        rows += [dict(pair=name, dtype=dtype, quantised=quantised, engine=engine, prefix=prefix, nodes=nodes, **own.row)
                 for (dtype, quantised, engine), own in timed.items()]
    return pd.DataFrame(rows)


def _passes(model, tokens: Tensor, prefix: int) -> Callable[[int], object]:
    """A forward pass over the next nodes [1, n] after a prefix, as a function of n."""
    cache = TreeCache()
    with torch.inference_mode():
        tree_forward(model, tokens[:, :prefix], torch.arange(prefix), None, cache, logits_to_keep=1)
        cache.commit([list(range(prefix))])

    @torch.inference_mode()
    def run(nodes: int) -> None:
        tree_forward(model, tokens[:, prefix : prefix + nodes], torch.arange(nodes), None, cache)
        cache.forget()

    return run


def over_llama(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The plain loop's speed over llama.cpp's, decoding alone, by dtype and quantised; value, low, high, n_prompts.
    Empty without llama.cpp's rows.
    """
    own = measure.decoding_alone(rows[rows["alternative"].isin([PLAIN, LLAMA])])
    if not (own["alternative"] == LLAMA).any():
        return pd.DataFrame()
    own["alternative"] = own["alternative"].where(own["alternative"] == LLAMA, own["dtype"] + " " + own["quantised"])
    return measure.gains(own, LLAMA, rng).set_index("alternative").drop(index=LLAMA)


def best_trees(costs: pd.DataFrame, candidates: pd.DataFrame) -> pd.DataFrame:
    """By number format of the table "format_costs", the drafter without a model and the tree that would be fastest at
    batch 1 with the format's cost of a pass: drafter, shape, speedup over plain decoding in the format, and `over`, over
    that in the first format.

    candidates: the table "advice_candidates", for tokens per round, and for how many of its rounds draft: a round that
    drafts nothing takes a pass over one node.
    """
    free = candidates[(candidates["batch"] == 1) & (candidates["level"] == 0)]
    plain = free["round_ms"] * free["speedup"] / free["tokens"]
    drafting = (free["round_ms"] - plain) / (free.groupby("budget")["round_ms"].transform("max") - plain)
    times, found = by_nodes(labelled(costs)), {}
    for label, own in times.drop(index=LLAMA, errors="ignore").iterrows():
        known = free["budget"] < times.columns.max()
        passes = np.interp(free["budget"] + 1, times.columns, own)
        gains = (free["tokens"] * own.iloc[0] / (own.iloc[0] + drafting * (passes - own.iloc[0])))[known]
        best = free.loc[gains.idxmax()]
        found[label] = {"drafter": best["drafter"], "tree": best["shape"], "speedup": gains.max(),
                        "over": gains.max() * times.iloc[0, 0] / own.iloc[0]}
    return pd.DataFrame.from_dict(found, orient="index")


def labelled(costs: pd.DataFrame) -> pd.DataFrame:
    """The table "format_costs" with the name of each row's format."""
    name = costs["dtype"].where(costs["quantised"] == "none", costs["quantised"] + ", " + costs["dtype"])
    return costs.assign(format=name.where(costs["engine"] != LLAMA, LLAMA))


def by_nodes(costs: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds of a pass by format, in the table's order, and nodes; costs: as from `labelled`."""
    times = costs.pivot(index="format", columns="nodes", values="median_ms")
    return times.loc[list(dict.fromkeys(costs["format"]))]


def by_format(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The table "formats" by dtype, quantised weights, and alternative: tokens per second, the share of text that
    agrees with that of the first format, the weights in MiB, of the draft model where it drafts; value, low, high: speed over plain decoding
    in the same format.
    """
    setting = ["dtype", "quantised", "alternative"]
    sums = rows.groupby(setting, sort=False)[["tokens", "seconds", "agreeing"]].sum()
    bytes_ = rows["target_weights"] + rows["drafter_weights"].where(rows["drafter"] == OWN, 0)
    held = bytes_.groupby([rows[name] for name in setting], sort=False).first() / 2**20
    gained = measure.gains(rows, PLAIN, rng, by=setting[:2]).set_index(setting)
    return pd.DataFrame({"tokens per second": sums["tokens"] / sums["seconds"],
                         "text shared with the first row": sums["agreeing"] / sums["tokens"],
                         "weights (MiB)": held}).join(gained[["value", "low", "high", "n_prompts"]])
