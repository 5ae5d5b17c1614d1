"""The cost of one round: the draft by the shape's levels, the check by its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from lib.cost.curves import Curve
from lib.trees.tree import Tree


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round of a whole batch at one prefix length.

    plain: a round that drafts nothing, which is plain decoding in the same loop. once: what a draft costs whatever its
    shape. level: of a drafter's forward by the nodes a row that it takes; a drafter that fills all levels in one
    forward has it all in `once`. check: the target's forward, the rule and the commit by drafted nodes a row.
    """

    plain: float
    once: float
    level: Curve
    check: Curve

    def draft(self, tree: Tree) -> float:
        """Seconds of drafting a tree: one forward a level that has children; leaves are never forwarded."""
        return self.once + float(np.sum(self.level(widths(tree)))) if tree.budget else 0.0

    def round(self, tree: Tree) -> float:
        """Seconds of a whole round; that of the root alone is plain decoding's."""
        return self.grown(widths(tree), tree.budget) if tree.budget else self.plain

    def grown(self, widths: Sequence[int], nodes: int) -> float:
        """Seconds of a round that drafts by forwards of so many nodes each, and has `nodes` of them verified."""
        return self.once + float(np.sum(self.level(np.asarray(widths)))) + float(self.check(nodes))


def widths(tree: Tree) -> np.ndarray:
    """int64[D]: how many nodes with children stand at each depth, the root first: what each draft forward takes."""
    inner = np.unique(tree.parents[1:])
    return np.bincount(tree.depth[inner], minlength=1) if len(inner) else np.zeros(0, dtype=np.int64)


def mix(first: RoundCost, second: RoundCost, share: float) -> RoundCost:
    """What lies between two costs: `share` of the way from the first to the second, curves point by point."""
    def between(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    def curve(a: Curve, b: Curve) -> Curve:
        at = np.union1d(a.at, b.at)
        return Curve(at, (1 - share) * a(at) + share * b(at))

    return RoundCost(between(first.plain, second.plain), between(first.once, second.once),
                     curve(first.level, second.level), curve(first.check, second.check))
