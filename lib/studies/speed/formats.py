"""Speed, text and memory of one pair with its weights in float32, bfloat16 and int8."""

import time
from os.path import commonprefix
from typing import Mapping

import numpy as np
import pandas as pd
import torch

from lib.cost import llama_cpp
from lib.cost.llama_cpp import LLAMA
from lib.cost.recommendation import NO_DRAFTER
from lib.drafters.drafter import ROOT_ALONE
from lib.lab import processor
from lib.models.checks import DTYPES
from lib.models.load import load_pair
from lib.studies.drafters.measure import weights
from lib.studies.speed import measure
from lib.studies.speed.alternatives import PLAIN, drafted, llama
from lib.trees.tree import Tree

# dtype, and which weights are int8: target|drafter. Where no block runs natively, PyTorch has int8 for bfloat16 alone.
FORMATS = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "none|int8"), ("bfloat16", "int8|none"),
           ("bfloat16", "int8"))
STORED = ("stored", "none")  # the numbers of a GGUF file, which llama.cpp reads as they are


def compare(name: str, prompts, drafting: Mapping[str, tuple[str, str | Tree]], *, new_tokens: int, device: str,
            generator: torch.Generator) -> pd.DataFrame:
    """The table "formats": a pair in each of FORMATS, plain and with each drafter, on each prompt, in shuffled turns.

    drafting: by spec of a drafter, the label and the shape of its tree. prompts: `recording.Prompts`. Formats for which
    the device has no units are left out, since a prompt would take minutes; `agreeing` compares with the first format.
    Greedy text in each format is that of the target in this format. llama.cpp decodes plainly where it can.
    """
    measured = [each for each in FORMATS if not processor.slow_dtype(DTYPES[each[0]], device)]
    pairs = {each: load_pair(name, dtype=each[0], device=device, quantize=each[1]) for each in measured}
    runs = {}
    for each, pair in pairs.items():
        runs[each, PLAIN] = drafted(PLAIN, pair, NO_DRAFTER, "", ROOT_ALONE, new_tokens)
        for spec, (label, shape) in drafting.items():
            runs[each, f"{spec}, {label}"] = drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens)
    held = {each: {"target_weights": weights(pair.target),
                   "drafter_weights": weights(pair.draft_model) if pair.draft_model is not None else 0}
            for each, pair in pairs.items()}
    for other in llama(name, pairs[measured[0]], new_tokens):
        runs[STORED, other.name] = other
        held[STORED] = {"target_weights": llama_cpp.file_of(name).stat().st_size, "drafter_weights": 0}
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


def over_llama(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The plain loop's speed over llama.cpp's, decoding alone, by dtype and quantised; value, low, high, n_prompts.
    Empty without llama.cpp's rows.
    """
    own = measure.decoding_alone(rows[rows["alternative"].isin([PLAIN, LLAMA])])
    if not (own["alternative"] == LLAMA).any():
        return pd.DataFrame()
    own["alternative"] = own["alternative"].where(own["alternative"] == LLAMA, own["dtype"] + " " + own["quantised"])
    return measure.gains(own, LLAMA, rng).set_index("alternative").drop(index=LLAMA)


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
