"""Speed where tokens are sampled: the loop, plain and with drafters and trees, verified by naive sampling, which is
lossless for chosen (top-k) children at any temperature.
"""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch

from lib.cost.calibration import dtype_of
from lib.cost.recommendation import NO_DRAFTER
from lib.decoding import loop
from lib.drafters.drafter import ROOT_ALONE
from lib.lab import stats
from lib.studies.speed import measure
from lib.studies.speed.alternatives import PLAIN, drafted
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

RULE = "naive"


def compare(pair, prompts, drafting: Sequence[tuple[str, str, str | Tree | Growth]], temperatures: Sequence[float], *,
            new_tokens: int, repeats: int, seed: int, generator: torch.Generator) -> pd.DataFrame:
    """The table "sampled": the loop plain and with each (drafter, label of a tree, tree), one prompt at a time, in
    shuffled turns. Ways sample texts of their own, so that their speeds are compared, not their texts.

    prompts: a `PromptSet`. repeats: texts of each way after each prompt. seed: of sampling; generator: of turns.
    """
    rows = []
    for temperature in temperatures:
        draws = torch.Generator().manual_seed(seed)
        decode = partial(loop.generate, rule=RULE, temperature=temperature, generator=draws)
        ways = [drafted(PLAIN, pair, NO_DRAFTER, "", ROOT_ALONE, new_tokens, generate=decode)]
        ways += [drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens, generate=decode)
                 for spec, label, shape in drafting]
        for way in ways:  # warm up
            way.run(prompts.ids[:1])
        for prompt, kind, ids in zip(prompts.names, prompts.kinds, prompts.ids):
            for turn in torch.randperm(repeats * len(ways), generator=generator).tolist():
                way, start = ways[turn % len(ways)], time.perf_counter()
                counts = measure.counted(way.run([ids]), start, time.perf_counter())
                rows.append(dict(pair=pair.name, dtype=dtype_of(pair), batch=1, temperature=temperature, rule=RULE,
                                 alternative=way.name, drafter=way.drafter, shape=way.shape, prompt=prompt, kind=kind,
                                 repeat=turn // len(ways), **counts))
    return pd.DataFrame(rows)


def in_words(found: pd.DataFrame) -> str:
    """The best drafter and tree at each temperature, in a sentence; found: `over_plain`."""
    return "; ".join(f"at temperature {row['temperature']:g} the best of {row['tried']} drafters and trees on "
                     f"{row['n_prompts']} prompts, `{row['alternative']}`, decodes {stats.format_estimate(row)} times "
                     "as fast as plain decoding" + (", and may not be faster" if row["low"] <= 1 <= row["high"] else "")
                     for _, row in best(found).iterrows()) + "."


def best(found: pd.DataFrame) -> pd.DataFrame:
    """The fastest way at each temperature, plain decoding left out; `tried`: among how many. found: `over_plain`."""
    others = found[found["alternative"] != PLAIN]
    fastest = others.loc[others.groupby("temperature")["value"].idxmax()]
    return fastest.assign(tried=fastest["temperature"].map(others.groupby("temperature").size()))


def over_plain(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Speed over the plain loop at the same temperature, without prefill: temperature, alternative, value, low, high,
    n_prompts; `tokens` per round. A text that ends at its first token has no speed; its prompt is left out.
    """
    alone = measure.decoding_alone(rows)
    whole = alone.groupby(["temperature", "prompt"])["tokens"].transform("min") > 0
    sums = alone[whole].groupby(["temperature", "alternative"])[["tokens", "rounds"]].sum()
    found = measure.gains(alone[whole], PLAIN, rng, by=["temperature"])
    return found.join((sums["tokens"] / sums["rounds"]).rename("tokens"), on=["temperature", "alternative"])
