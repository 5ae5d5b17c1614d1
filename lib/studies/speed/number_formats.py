"""Number formats of target and drafter: memory, speed, what speculation gains in each, and how far the text agrees."""

import time
from typing import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib.lab import stats
from lib.models.load import load_pair
from lib.studies.drafters import footprint
from lib.studies.speed import measure
from lib.studies.speed.alternatives import NOBODY, PLAIN, drafted
from lib.trees.tree import Tree

# dtype, and which weights are int8: target|drafter; where no block runs natively, PyTorch's kernel knows bfloat16 alone
WAYS = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "none|int8"), ("bfloat16", "int8|none"),
        ("bfloat16", "int8"))


def compare(
    name: str,
    asked,
    drafting: Mapping[str, tuple[str, str | Tree]],
    *,
    new_tokens: int,
    device: str,
    ways: Sequence[tuple[str, str]] = WAYS,
    generator: torch.Generator,
) -> pd.DataFrame:
    """The table "formats": a pair in each way, plain and with each drafter, on each asked prompt, in shuffled turns.

    drafting: of each kind of drafter (see `alternatives.made`) the label and the shape of its tree. The first of `ways`
    is the yardstick of `agreeing`. asked: `recording.Prompts`. Each way's lossless text is that of its own target.
    """
    pairs = {way: load_pair(name, dtype=way[0], device=device, quantize=way[1]) for way in ways}
    runs = {}
    for way, pair in pairs.items():
        runs[way, PLAIN] = drafted(PLAIN, pair, NOBODY, "", Tree([-1]), new_tokens)
        for spec, (label, shape) in drafting.items():
            runs[way, f"{spec}, {label}"] = drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens)
    weights = {way: _weights(pair) for way, pair in pairs.items()}
    for run in runs.values():  # warm
        run.run(asked.ids[:1])
    rows = []
    for prompt, kind, ids in zip(asked.names, asked.kinds, asked.ids):
        done, seconds = {}, {}
        for at in torch.randperm(len(runs), generator=generator).tolist():
            key, start = list(runs)[at], time.perf_counter()
            done[key] = runs[key].run([ids])
            seconds[key] = time.perf_counter() - start
        for (way, alternative), run in runs.items():
            told, base = (done[own, alternative].tokens[0] for own in (way, ways[0]))
            rows.append(dict(
                pair=name, batch=1, dtype=way[0], quantised=way[1], alternative=alternative, drafter=run.drafter,
                shape=run.shape, prompt=prompt, kind=kind, agreeing=_shared(told, base), **weights[way],
                **measure.counted(done[way, alternative], seconds[way, alternative])))
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """The table "formats" by dtype, what is int8, and alternative: tokens a second, the share of text that agrees with
    the first way's, the weights of both models in MiB; value, low, high: speed over plain decoding in the same way.
    """
    ways = ["dtype", "quantised", "alternative"]
    sums = rows.groupby(ways, sort=False)[["tokens", "seconds", "agreeing"]].sum()
    held = rows.groupby(ways, sort=False)[["target_weights", "drafter_weights"]].first().sum(axis=1) / 2**20
    gained = measure.gains(rows, PLAIN, generator, by=ways[:2]).set_index(ways)[["value", "low", "high", "n_prompts"]]
    return pd.DataFrame({
        "tokens a second": sums["tokens"] / sums["seconds"],
        "text shared with the first row": sums["agreeing"] / sums["tokens"],
        "weights (MiB)": held,
    }).join(gained)


def shown(summed: pd.DataFrame) -> pd.DataFrame:
    """A `summary` for readers: speeds over plain decoding in words, the rest rounded."""
    gained = pd.Series(stats.in_words(summed), summed.index, name="over the plain loop")
    return summed.drop(columns=["value", "low", "high", "n_prompts"]).round(2).join(gained)


def _shared(own: list[int], base: list[int]) -> int:
    """Tokens up to the first that differs."""
    return next((i for i, (ours, theirs) in enumerate(zip(own, base)) if ours != theirs), min(len(own), len(base)))


def _weights(pair) -> dict[str, int]:
    return {
        "target_weights": footprint.weights(pair.target),
        "drafter_weights": footprint.weights(pair.draft_model),
    }
