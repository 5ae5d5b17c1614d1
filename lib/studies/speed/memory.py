"""Memory of a pair, computed from the models' sizes, with the measured peak of a decoding; and speed, memory and text
of the same pair in float32, bfloat16 and int8.
"""

import time
from typing import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.drafters.registry import make
from lib.lab import processor
from lib.lab.counters import CountedBytes
from lib.models.cache import capacity_for
from lib.models.checks import DTYPES
from lib.models.load import load_pair
from lib.studies.drafters.measure import weights
from lib.studies.speed import measure
from lib.studies.speed.alternatives import NOBODY, OWN, PLAIN, ROOT_ALONE, drafted
from lib.trees.tree import Tree

# dtype, and which weights are int8: target|drafter. Where no block runs natively, PyTorch has int8 for bfloat16 alone.
FORMATS = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "none|int8"), ("bfloat16", "int8|none"),
           ("bfloat16", "int8"))


def token_bytes(model) -> int:
    """Keys and values of one token in all layers."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize


def needs(target, drafter, tree: Tree, *, batch: int, tokens: int) -> dict[str, float]:
    """Bytes, by column of the table "memory", of all sequences at `tokens` committed tokens each; the drafter's cache
    holds the nodes with children.
    """
    internal = tree.size - len(tree.leaves)
    vocabulary = target.config.get_text_config().vocab_size * target.dtype.itemsize
    cache, plain = (batch * capacity_for(tokens + nodes) * token_bytes(target) for nodes in (tree.size, 1))
    both = dict(target_weights=weights(target), drafter_weights=weights(drafter), target_cache=cache,
                drafter_cache=batch * capacity_for(tokens + internal) * token_bytes(drafter),
                logits=batch * tree.size * vocabulary)
    alone = weights(target) + plain + batch * vocabulary
    return both | {"alone": alone, "extra": sum(both.values()) / alone - 1}


def peak(pair, drafter, shape: Tree, prompts: Sequence[Tensor], new_tokens: int) -> int:
    """The largest number of bytes in tensors, without weights, while prompts int64[T] are continued as one batch."""
    ids, mask = next(in_batches(prompts, len(prompts)))
    with CountedBytes() as counted:
        generate(pair.target, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new_tokens)
    return counted.peak


def row(pair, label: str, tree: Tree, *, batch: int, tokens: int) -> dict[str, object]:
    """A row of the table "memory" without its measured peaks."""
    dtype = str(pair.target.dtype).removeprefix("torch.")
    setting = dict(pair=pair.name, dtype=dtype, batch=batch, shape=label, tokens=tokens)
    return setting | needs(pair.target, pair.draft_model, tree, batch=batch, tokens=tokens)


def table(pair, trees: Mapping[int, tuple[str, Tree]], prompts: Sequence[Tensor], new_tokens: int) -> pd.DataFrame:
    """The table "memory", one row per batch. trees: label and tree by batch. Prompts are repeated to fill a batch."""
    rows = []
    for batch, (label, tree) in trees.items():
        group = [prompts[place % len(prompts)] for place in range(batch)]
        peaks = {"peak": peak(pair, make(OWN, pair), tree, group, new_tokens),
                 "peak_alone": peak(pair, make(NOBODY, pair), ROOT_ALONE, group, new_tokens)}
        rows.append(row(pair, label, tree, batch=batch, tokens=max(map(len, prompts)) + new_tokens) | peaks)
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------------- number formats


def compare_formats(name: str, prompts, drafting: Mapping[str, tuple[str, str | Tree]], *, new_tokens: int, device: str,
                    formats: Sequence[tuple[str, str]] = FORMATS, generator: torch.Generator) -> pd.DataFrame:
    """The table "formats": a pair in each format, plain and with each drafter, on each prompt, in shuffled turns.

    drafting: by spec of a drafter, the label and the shape of its tree. formats: (dtype, quantised weights), those left
    out for which the device has no units, in which a prompt would take minutes; `agreeing` compares with the first.
    prompts: `recording.Prompts`. Greedy text in each format is that of the target in this format.
    """
    measured = [each for each in formats if not processor.slow_dtype(DTYPES[each[0]], device)]
    pairs = {each: load_pair(name, dtype=each[0], device=device, quantize=each[1]) for each in measured}
    runs = {}
    for each, pair in pairs.items():
        runs[each, PLAIN] = drafted(PLAIN, pair, NOBODY, "", ROOT_ALONE, new_tokens)
        for spec, (label, shape) in drafting.items():
            runs[each, f"{spec}, {label}"] = drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens)
    held = {each: {"target_weights": weights(pair.target),
                   "drafter_weights": weights(pair.draft_model) if pair.draft_model is not None else 0}
            for each, pair in pairs.items()}
    for run in runs.values():  # warm up
        run.run(prompts.ids[:1])
    rows = []
    for prompt, kind, ids in zip(prompts.names, prompts.kinds, prompts.ids):
        done, seconds = {}, {}
        for at in torch.randperm(len(runs), generator=generator).tolist():
            key, start = list(runs)[at], time.perf_counter()
            done[key] = runs[key].run([ids])
            seconds[key] = time.perf_counter() - start
        for (each, alternative), run in runs.items():
            own, first = (done[other, alternative].tokens[0] for other in (each, measured[0]))
            rows.append(dict(
                pair=name, batch=1, dtype=each[0], quantised=each[1], alternative=alternative, drafter=run.drafter,
                shape=run.shape, prompt=prompt, kind=kind, agreeing=_shared(own, first), **held[each],
                **measure.counted(done[each, alternative], seconds[each, alternative])))
    return pd.DataFrame(rows)


def by_format(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The table "formats" by dtype, quantised weights, and alternative: tokens per second, the share of text that
    agrees with that of the first format, the weights of both models in MiB; value, low, high: speed over plain decoding
    in the same format.
    """
    setting = ["dtype", "quantised", "alternative"]
    sums = rows.groupby(setting, sort=False)[["tokens", "seconds", "agreeing"]].sum()
    held = rows.groupby(setting, sort=False)[["target_weights", "drafter_weights"]].first().sum(axis=1) / 2**20
    gained = measure.gains(rows, PLAIN, rng, by=setting[:2]).set_index(setting)
    return pd.DataFrame({"tokens per second": sums["tokens"] / sums["seconds"],
                         "text shared with the first row": sums["agreeing"] / sums["tokens"],
                         "weights (MiB)": held}).join(gained[["value", "low", "high", "n_prompts"]])


def _shared(own: list[int], base: list[int]) -> int:
    """Number of tokens before the first that differs."""
    return next((i for i, (ours, theirs) in enumerate(zip(own, base)) if ours != theirs), min(len(own), len(base)))
