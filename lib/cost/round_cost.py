"""The cost of one round: drafting by a static tree's levels or a grown tree's budget, the check by its nodes, as curves
that never fall, fitted to a table of timed rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression, nnls

from lib.trees import named
from lib.trees.tree import Tree

PLAIN = "chain:0"  # the shape of plain decoding, which drafts nothing
RULER = "random tokens"  # what tables call the drafter whose rounds tell what checking costs: excerpts of text
LEAST_SECONDS = 1e-9  # of a draft: errors are relative, and a clock may give 0


@dataclass(frozen=True)
class Curve:
    """Seconds over an amount of work: linear between the points, constant below the first, and beyond the last with
    the mean slope over the last half of the amounts, since the last two points may be the two sides of a step.

    at: float[P], increasing; seconds: float[P], not decreasing.
    """

    at: np.ndarray
    seconds: np.ndarray

    @classmethod
    def through(cls, at: Sequence[float], seconds: Sequence[float]) -> Curve:
        """The non-decreasing curve closest to measured points in least squares; points at one place are averaged.

        More work takes no less time, whatever the noise of the measurement. ValueError where a number is not
        finite.
        """
        at, seconds = np.asarray(at, dtype=float), np.asarray(seconds, dtype=float)
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
            half = max(self.at[0], self.at[-1] / 2)
            rise = (self.seconds[-1] - np.interp(half, self.at, self.seconds)) / (self.at[-1] - half)
            inside = inside + rise * np.maximum(amount - self.at[-1], 0.0)
        return float(inside) if inside.ndim == 0 else inside

    def times(self, share: float) -> Curve:
        """The curve with this share of its seconds."""
        return Curve(self.at, self.seconds * share)


FREE = Curve(np.ones(1), np.zeros(1))  # of drafting that takes no time


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round of a whole batch.

    plain: a round that drafts nothing, which is plain decoding in the same loop. once: the part of drafting that does
    not depend on the shape. level: one forward pass of the drafter, by the nodes per row that it takes; for a drafter
    that fills all levels in one forward pass, `once` holds all of it. check: the target's forward pass, the rule and
    the commit, by drafted nodes per row. grown: all of drafting a tree that a rule grows, by the rule's budget; None
    where it was not timed.
    """

    plain: float
    once: float
    level: Curve
    check: Curve
    grown: Curve | None = None

    def draft(self, tree: Tree) -> float:
        """Seconds of drafting a tree: one forward pass per level that has children; leaves are never forwarded."""
        return self.once + float(np.sum(self.level(widths(tree)))) if tree.budget else 0.0

    def drafting_as(self, other: RoundCost) -> RoundCost:
        """This check, with drafting that takes as large a share of a plain round as another's does."""
        share = self.plain / other.plain
        return replace(self, once=other.once * share, level=other.level.times(share),
                       grown=other.grown and other.grown.times(share))

    def checking_as(self, other: RoundCost) -> RoundCost:
        """This drafting, with another's plain round and check."""
        return replace(self, plain=other.plain, check=other.check)

    def growing_as(self, other: RoundCost) -> RoundCost:
        """This cost, with another's share of a plain round for growing a tree where that was not timed."""
        return self if self.grown else replace(self, grown=self.drafting_as(other).grown)


def before_steps(batch: int, most: int) -> list[int]:
    """Numbers of nodes per row, from 0 to `most`, before a step of a check's cost: the largest with which a batch has
    no more than 1, 2, 4, .. rows, batch * (nodes + 1), since matrix units multiply whole blocks of rows.
    """
    powers = (2**power for power in range((batch * (most + 2) - 1).bit_length()))
    return sorted({rows // batch - 1 for rows in powers if rows >= batch})


def widths(tree: Tree) -> np.ndarray:
    """int64[D]: the number of nodes with children at each depth, from the root: the rows of each draft forward."""
    inner = np.unique(tree.parents[1:])
    return np.bincount(tree.depth[inner], minlength=1) if len(inner) else np.zeros(0, dtype=np.int64)


class CostTable:
    """The table "costs" as functions. rows: the table's; cells: the cost of rounds by target, drafter and batch."""

    def __init__(self, rows: pd.DataFrame):
        self.rows = rows
        self.cells = {cell: _fitted(group) for cell, group in rows.groupby(["target", "drafter", "batch"], sort=True)}

    def at(self, target: str, drafter: str, *, batch: int = 1) -> RoundCost:
        """The cost of a round. KeyError for a pair or batch that was not calibrated."""
        return self.cells[target, drafter, batch]


def _fitted(rows: pd.DataFrame) -> RoundCost:
    """The cost of rounds at one batch."""
    by_rule = np.array([not isinstance(named(shape), Tree) for shape in rows["shape"]])
    growing, rows = rows[by_rule], rows[~by_rule]
    plain, drafts = rows[rows["shape"] == PLAIN], rows[rows["nodes"] > 0]
    check = Curve.through(rows["nodes"], (rows["verify_ms"] + rows["commit_ms"]) / 1000)
    seconds = drafts["draft_ms"].to_numpy() / 1000
    once, level = _draft_model(list(drafts["shape"]), np.maximum(seconds, LEAST_SECONDS))
    of_plain = float((plain["verify_ms"] + plain["commit_ms"] + plain["draft_ms"]).iloc[0] / 1000)
    grown = None if growing.empty else Curve.through(growing["nodes"], growing["draft_ms"] / 1000)
    return RoundCost(of_plain, once, level, check, grown)


def _draft_model(shapes: list[str], seconds: np.ndarray) -> tuple[float, Curve]:
    """seconds = once + sum over levels of level(width), by least squares of relative errors, without negative terms."""
    widths_of = [widths(named(shape)) for shape in shapes]
    places = np.unique(np.concatenate(widths_of))
    design = np.array([[1.0, *((level_widths == place).sum() for place in places)] for level_widths in widths_of])
    once, *levels = nnls(design / seconds[:, None], np.ones(len(seconds)))[0]
    return once, Curve.through(places, levels)
