"""Speed from acceptance and cost: tokens per round by replay over seconds per round by calibration.

Intervals come from resampling prompts; costs are taken as known. Each row of a batch advances at its own pace.
`speeds` is for a batch that stays full, as a server keeps it by giving the place of a row that has ended to the next
request: it yields its rows' mean tokens per round. `predict` is for a batch that is decoded until its last row ends:
rows need different numbers of rounds, which replay counts exactly, so that fewer and fewer rows run, and each round
costs as much as a round of the rows that still run.
"""

from typing import Sequence

import numpy as np
import pandas as pd

from lib import replay
from lib.cost.fit import Costs
from lib.cost.round_cost import RoundCost
from lib.lab import stats
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.trees.tree import Tree

ENDS = ("value", "low", "high")


def speeds(judged: Trace, drafter: str, trees: Sequence[tuple[str, int, Tree]], cost: RoundCost,
           generator: np.random.Generator, *, batch: int = 1, loops: bool = False) -> pd.DataFrame:
    """What (family, budget, tree) would do on a trace in a batch that stays full: a row each, in the order given.

    Columns: family, budget, nodes, depth; tokens (1 + mean a), speedup (over plain decoding of the same loop) and
    tokens_per_second (of the whole batch), each with _low and _high; round_ms, n_prompts, n_rounds. loops: whether
    rounds within loops count, as they do on a clock. ValueError where no round counts.
    """
    rows = acceptance.evaluate(judged, drafter, trees)
    rows = rows if loops else rows[rows["stretch"] == "before"]
    found = stats.summarise(rows, ["family", "budget"], "accepted", "rounds", generator)
    found = found.set_index(["family", "budget"])
    for family, budget, _ in trees:
        if (family, budget) not in found.index:
            raise ValueError(f"no round of {drafter!r} with {family} of {budget} nodes counts: the trace has none, or "
                             "none before a loop; give more text, or starts in real text")
    return pd.DataFrame([_speed(family, budget, tree, found.loc[(family, budget)], cost, batch)
                         for family, budget, tree in trees])


def _speed(family: str, budget: int, tree: Tree, length: pd.Series, cost: RoundCost, batch: int) -> dict:
    seconds = cost.round(tree)
    row = dict(family=family, budget=budget, nodes=tree.budget, depth=tree.max_depth, round_ms=1000 * seconds)
    for end, suffix in zip(ENDS, ("", "_low", "_high")):
        tokens = 1 + length[end]
        row |= {f"tokens{suffix}": tokens, f"speedup{suffix}": tokens * cost.plain / seconds,
                f"tokens_per_second{suffix}": batch * tokens / seconds}
    return row | {"n_prompts": int(length["n_prompts"]), "n_rounds": int(length["n_rounds"])}


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
    (after the roots), rounds (of all rows), seconds (without prefill).

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


def rounds_of_rows(recorded: Trace, drafter: str, tree: Tree) -> np.ndarray:
    """int64[N]: the rounds in which each row of a trace is written from its root to its end."""
    everywhere = replay.rounds(recorded, tree, drafter)
    return np.bincount(replay.chained(everywhere, recorded.lengths).rows, minlength=len(recorded.lengths))


def running(rounds: Sequence[int]) -> np.ndarray:
    """int64[R]: how many rows run in each round of a batch whose rows need these numbers of rounds, R the largest."""
    rounds = np.asarray(rounds, dtype=np.int64)
    return (rounds[None] > np.arange(rounds.max(initial=0))[:, None]).sum(1)
