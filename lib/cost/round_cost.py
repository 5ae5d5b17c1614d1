"""The cost of one round: drafting by the tree's levels, the check by its nodes, both as curves that never fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from lib.trees.tree import Tree


@dataclass(frozen=True)
class Curve:
    """Seconds over an amount of work: linear between the points, constant below the first, and beyond the last with
    the slope of the last segment.

    at: float[P], increasing; seconds: float[P], not decreasing.
    """

    at: np.ndarray
    seconds: np.ndarray

    @classmethod
    def through(cls, at: Sequence[float], seconds: Sequence[float]) -> Curve:
        """The non-decreasing curve closest to measured points in least squares; points at one place are averaged.

        More work takes no less time, whatever the noise of the measurement. ValueError where there is no point, or one
        that is no finite number.
        """
        at, seconds = np.asarray(at, dtype=float), np.asarray(seconds, dtype=float)
        if at.ndim != 1 or at.shape != seconds.shape or not len(at):
            raise ValueError(f"a curve through {at.shape} places and {seconds.shape} times: give one time per place")
        if not (np.isfinite(at).all() and np.isfinite(seconds).all()):
            raise ValueError("a curve through times of which one is missing: calibrate again with more seconds")
        places, where, counts = np.unique(at, return_inverse=True, return_counts=True)
        means = np.bincount(where, seconds) / counts
        return cls(places, isotonic_regression(means, weights=counts).x)

    def __call__(self, amount) -> np.ndarray | float:
        """Seconds for an amount of work, or for float[...] amounts."""
        amount = np.asarray(amount, dtype=float)
        inside = np.interp(amount, self.at, self.seconds)
        if len(self.at) > 1:
            rise = (self.seconds[-1] - self.seconds[-2]) / (self.at[-1] - self.at[-2])
            inside = inside + rise * np.maximum(amount - self.at[-1], 0.0)
        return float(inside) if inside.ndim == 0 else inside


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round of a whole batch at one prefix length.

    plain: a round that drafts nothing, which is plain decoding in the same loop. once: the part of drafting that does
    not depend on the shape. level: one forward pass of the drafter, by the nodes per row that it takes; for a drafter
    that fills all levels in one forward pass, `once` holds all of it. check: the target's forward pass, the rule and
    the commit, by drafted nodes per row. cold: by how much the first rounds after a prefill, which has evicted the
    weights from the caches, exceed as many later ones.
    """

    plain: float
    once: float
    level: Curve
    check: Curve
    cold: float = 0.0

    def draft(self, tree: Tree) -> float:
        """Seconds of drafting a tree: one forward pass per level that has children; leaves are never forwarded."""
        return self.once + float(np.sum(self.level(widths(tree)))) if tree.budget else 0.0

    def round(self, tree: Tree) -> float:
        """Seconds of a whole round; that of the root alone is plain decoding's."""
        return self.draft(tree) + float(self.check(tree.budget)) if tree.budget else self.plain


def widths(tree: Tree) -> np.ndarray:
    """int64[D]: the number of nodes with children at each depth, from the root: the rows of each draft forward."""
    inner = np.unique(tree.parents[1:])
    return np.bincount(tree.depth[inner], minlength=1) if len(inner) else np.zeros(0, dtype=np.int64)


def mix(first: RoundCost, second: RoundCost, share: float) -> RoundCost:
    """Linear interpolation: `share` of the way from the first cost to the second, curves point by point."""
    def between(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    def curve(a: Curve, b: Curve) -> Curve:
        at = np.union1d(a.at, b.at)
        return Curve(at, (1 - share) * a(at) + share * b(at))

    return RoundCost(between(first.plain, second.plain), between(first.once, second.once),
                     curve(first.level, second.level), curve(first.check, second.check),
                     between(first.cold, second.cold))
