"""A batch decoded until its last row ends: rows need different numbers of rounds, so that fewer and fewer run.

A server fills the places of rows that have ended, and `prediction.speeds` holds. A batch that nobody fills empties: its
rounds are those of its slowest row, each at the cost of the rows that still run. Replay says exactly how many rounds
every row needs.
"""

from typing import Sequence

import numpy as np
import pandas as pd

from lib import replay
from lib.cost.fit import Costs
from lib.lab import stats
from lib.replay.trace import Trace
from lib.trees.tree import Tree


def rounds_of_rows(recorded: Trace, drafter: str, tree: Tree) -> np.ndarray:
    """int64[N]: the rounds in which each row of a trace is written from its root to its end."""
    everywhere = replay.rounds(recorded, tree, drafter)
    return np.bincount(replay.chained(everywhere, recorded.lengths).rows, minlength=len(recorded.lengths))


def running(rounds: Sequence[int]) -> np.ndarray:
    """int64[R]: how many rows run in each round of a batch whose rows need so many rounds, R those of the slowest."""
    rounds = np.asarray(rounds, dtype=np.int64)
    return (rounds[None] > np.arange(rounds.max(initial=0))[:, None]).sum(1)


def decoded(recorded: Trace, costs: Costs, drafter: str, tree: Tree, groups: Sequence[Sequence[int]],
            prefix: float) -> pd.DataFrame:
    """A row a group of rows that are decoded together: prompt (its first), tokens (behind the roots), rounds (of all
    rows), seconds (prefill left out).

    recorded: the texts, as long as they are decoded; a group may name a row twice. prefix: mean committed tokens while
    decoding. ValueError where a batch between one row and the largest group is outside the calibrated ones.
    """
    target, needed = recorded.about["target"], rounds_of_rows(recorded, drafter, tree)
    together = [running(needed[list(rows)]) for rows in groups]
    sizes = sorted({int(rows) for each in together for rows in each})
    seconds = {rows: costs.at(target, drafter, batch=rows, prefix=prefix).round(tree) for rows in sizes}
    return pd.DataFrame({
        "prompt": [recorded.prompts[rows[0]] for rows in groups],
        "tokens": [int(recorded.lengths[list(rows)].sum()) for rows in groups],
        "rounds": [int(each.sum()) for each in together],
        "seconds": [sum(seconds[int(rows)] for rows in each) for each in together],
    })


def predict(recorded: Trace, costs: Costs, drafter: str, tree: Tree, groups: Sequence[Sequence[int]], prefix: float,
            generator: np.random.Generator) -> dict[str, float]:
    """Of groups as `decoded` takes them: tokens (a round and row), predicted (tokens a second of a whole batch, with
    predicted_low and predicted_high from resampling groups), speedup (over plain decoding of the same groups).
    """
    rows, plain = (decoded(recorded, costs, drafter, each, groups, prefix) for each in (tree, Tree([-1])))
    found = stats.summarise(rows.assign(all=""), ["all"], "tokens", "seconds", generator).iloc[0]
    return {"tokens": rows["tokens"].sum() / rows["rounds"].sum(), "predicted": found["value"],
            "predicted_low": found["low"], "predicted_high": found["high"],
            "speedup": plain["seconds"].sum() / rows["seconds"].sum()}
