"""Speed from acceptance and cost: tokens per round by replay over seconds per round by calibration.

Intervals come from resampling prompts; costs are taken as known. Each row of a batch advances at its own pace. A batch
is decoded until its last row ends: rows need different numbers of rounds, which replay counts exactly, so that fewer
and fewer rows run, and each round costs as much as a round of the rows that still run.
"""

from typing import Sequence

import numpy as np
import pandas as pd

from lib import replay
from lib.cost.fit import Costs
from lib.lab import stats
from lib.replay.trace import Trace
from lib.trees.tree import Tree

def predict(recorded: Trace, costs: Costs, drafter: str, tree: Tree, groups: Sequence[Sequence[int]], prefix: float,
            generator: np.random.Generator) -> dict[str, float]:
    """Of groups as `decoded` takes them: tokens (per round and row), predicted (tokens per second of a whole batch,
    with predicted_low and predicted_high from resampling groups), speedup (over plain decoding of the same groups).
    """
    rows, plain = (decoded(recorded, costs, drafter, each, groups, prefix) for each in (tree, Tree([-1])))
    found = stats.summarise(rows.assign(all=""), ["all"], "tokens", "seconds", generator).iloc[0]
    return {"tokens": rows["tokens"].sum() / rows["rounds"].sum(), "predicted": found["value"],
            "predicted_low": found["low"], "predicted_high": found["high"],
            "speedup": plain["seconds"].sum() / rows["seconds"].sum()}


def decoded(recorded: Trace, costs: Costs, drafter: str, tree: Tree, groups: Sequence[Sequence[int]],
            prefix: float) -> pd.DataFrame:
    """One row per group of rows that are decoded together until the last one ends: prompt (of the first row), tokens
    (after the roots), rounds (of all rows), seconds (without prefill, after which the first rounds are cold).

    recorded: the texts, as long as they are decoded; a group may name a row twice. prefix: mean committed tokens while
    decoding. ValueError where a batch between one row and the largest group is outside the calibrated ones.
    """
    target, needed = recorded.about["target"], rounds_of_rows(recorded, drafter, tree)
    together = [running(needed[list(rows)]) for rows in groups]
    sizes = sorted({int(rows) for each in together for rows in each})
    prices = {rows: costs.at(target, drafter, batch=rows, prefix=prefix) for rows in sizes}
    seconds = {rows: price.round(tree) for rows, price in prices.items()}
    return pd.DataFrame({
        "prompt": [recorded.prompts[rows[0]] for rows in groups],
        "tokens": [int(recorded.lengths[list(rows)].sum()) for rows in groups],
        "rounds": [int(each.sum()) for each in together],
        "seconds": [prices[int(each[0])].cold + sum(seconds[int(rows)] for rows in each) if len(each) else 0.0
                    for each in together],
    })


def rounds_of_rows(recorded: Trace, drafter: str, tree: Tree) -> np.ndarray:
    """int64[N]: the rounds in which each row of a trace is written from its root to its end."""
    everywhere = replay.rounds(recorded, tree, drafter)
    return np.bincount(replay.chained(everywhere).rows, minlength=len(recorded.lengths))


def running(rounds: Sequence[int]) -> np.ndarray:
    """int64[R]: how many rows run in each round of a batch whose rows need these numbers of rounds, R the largest."""
    rounds = np.asarray(rounds, dtype=np.int64)
    return (rounds[None] > np.arange(rounds.max(initial=0))[:, None]).sum(1)
