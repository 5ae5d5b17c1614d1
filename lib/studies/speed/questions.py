"""Two questions of whoever serves: until which batch does a tree pay, and how does its budget move with the drafter's
cost? Both by choosing the fastest tree anew for every setting, on prompts that do not judge it.
"""

from dataclasses import replace
from typing import Sequence

import numpy as np
import pandas as pd

from lib import cost
from lib.cost import best_tree
from lib.cost.best_tree import Limits
from lib.cost.curves import Curve
from lib.cost.fit import Costs
from lib.cost.rounds import RoundCost
from lib.replay.trace import Trace
from lib.trees.tree import Tree

RATIOS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # costs of a drafted level in plain rounds that are asked about
CHOSEN, SMALLEST = "fastest tree", "chain@1"  # the fastest of all, and the least that is speculation


def by_batch(choosing: Trace, judged: Trace, costs: Costs, drafter: str, batches: Sequence[int], *, prefix: float,
             limits: Limits, generator: np.random.Generator) -> pd.DataFrame:
    """The columns of `cost.speeds` for the fastest tree of each batch, and for one drafted token; `batch` with them."""
    target = choosing.about["target"]
    prices = {batch: costs.at(target, drafter, batch=batch, prefix=prefix) for batch in batches}
    return pd.concat([_chosen(choosing, judged, own, drafter, limits, generator, batch).assign(batch=batch)
                      for batch, own in prices.items()], ignore_index=True)


def by_ratio(choosing: Trace, judged: Trace, own: RoundCost, drafter: str, ratios: Sequence[float], *, limits: Limits,
             generator: np.random.Generator) -> pd.DataFrame:
    """The same at one batch, were a level of one node to cost `ratio` rounds of plain decoding, all else as it is."""
    return pd.concat([_chosen(choosing, judged, scaled(own, ratio), drafter, limits, generator, 1).assign(ratio=ratio)
                      for ratio in ratios], ignore_index=True)


def scaled(own: RoundCost, ratio: float) -> RoundCost:
    """The cost of rounds with a drafter that is slower or faster by one factor, so that a level of one node costs
    `ratio` plain rounds.
    """
    factor = ratio * own.plain / float(own.level(1))
    return replace(own, once=factor * own.once, level=Curve(own.level.at, factor * own.level.seconds))


def last_paying(rows: pd.DataFrame) -> int | None:
    """The batch of `by_batch` up to which the fastest tree is faster than plain decoding beyond its interval, at every
    smaller one too; None where it is not at the smallest.
    """
    own = rows[rows["family"] == CHOSEN].sort_values("batch")
    paying = own[(own["speedup_low"] > 1).cummin()]
    return None if paying.empty else int(paying["batch"].iloc[-1])


def _chosen(choosing, judged, own: RoundCost, drafter: str, limits: Limits, generator, batch: int) -> pd.DataFrame:
    tree = best_tree.choose(choosing, own.round, limits, drafter).tree
    forest = [(CHOSEN, tree.budget, tree), (SMALLEST, 1, Tree([-1, 0]))]
    return cost.speeds(judged, drafter, forest, own, generator, batch=batch, loops=True)
