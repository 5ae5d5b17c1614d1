"""Speed from acceptance and cost: tokens a round by replay over seconds a round by calibration.

Intervals come from resampling prompts; costs are taken as known. Rows of a batch advance each at its own pace, so that
a batch yields its rows' mean tokens a round. It is taken to stay full, as a server keeps it, which gives the place of a
row that has ended to the next; `whole_batches` is about those that empty.
"""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.cost.rounds import RoundCost
from lib.lab import stats
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.trees.tree import Tree

ENDS = ("value", "low", "high")


def speeds(judged: Trace, drafter: str, trees: Sequence[tuple[str, int, Tree]], cost: RoundCost,
           generator: np.random.Generator, *, batch: int = 1, loops: bool = False) -> pd.DataFrame:
    """What (family, budget, tree) would do on a trace: a row each, in the order given, names and budgets as they are.

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
