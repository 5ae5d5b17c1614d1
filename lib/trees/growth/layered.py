"""Rules that expand a fixed number of nodes at each level: EAGLE-2, OPT-Tree and beam search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates, Growth

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Eagle2(Growth):
    """Expand and rerank (EAGLE-2, Li et al. 2024, section 4): the `width` nodes of a level with the largest reach get
    `width` children each, and the `budget` candidates with the largest reach are kept; ties go to the shallower node.

    If there are few candidates (width + (depth - 1) width^2), the tree is smaller than its budget.
    """

    width: int
    max_depth: int
    budget: int

    @property
    def name(self) -> str:
        """In the form that `growth.parse` reads."""
        return f"eagle2:{self.width},{self.max_depth}@{self.budget}"

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the level."""
        return candidates.best_of(candidates.newest, self.width)


@dataclass(frozen=True)
class OptTree(Growth):
    """OPT-Tree (Wang et al. 2025, Alg. 1): the `most` best nodes of every level are expanded, until a level adds no
    more than `delta` to the summed reach of the `budget` best candidates; these are kept.

    That sum is the drafter's estimate of the accepted length. The paper has most = budget; with delta = 0 the tree is
    then the best-first tree (see `DySpec`), with wider levels.
    """

    most: int
    max_depth: int
    budget: int
    delta: float = 0.0

    @property
    def name(self) -> str:
        """In the form that `growth.parse` reads."""
        delta = f",{self.delta:g}" if self.delta else ""
        return f"opttree:{self.most},{self.max_depth}{delta}@{self.budget}"

    @property
    def width(self) -> int:
        return self.budget

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the level, unless the level gained too little."""
        before = np.sort(candidates.reach[1 : candidates.newest[0]])[::-1][: self.budget].sum()
        gained = candidates.reach[candidates.best(self.budget)].sum() - before
        return candidates.best_of(candidates.newest, self.most) if gained > self.delta else NOTHING


@dataclass(frozen=True)
class Beam(Growth):
    """Beam search that keeps all levels: the `width` best paths of each level continue, up to `budget` nodes.

    The last level may be narrower. The depth is fixed; the rule chooses only which nodes a level has.
    """

    width: int
    budget: int

    @property
    def name(self) -> str:
        """In the form that `growth.parse` reads."""
        return f"beam:{self.width}@{self.budget}"

    @property
    def max_depth(self) -> int:
        """The levels that the budget allows."""
        return -(-self.budget // self.width)

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The `width` best nodes of the level."""
        return candidates.best_of(candidates.newest, self.width)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The first `budget` nodes of all levels' beams."""
        levels = [candidates.best_of(np.flatnonzero(candidates.depth == depth), self.width)
                  for depth in range(1, int(candidates.depth[-1]) + 1)]
        if not levels:
            return NOTHING
        room = self.budget - sum(map(len, levels[:-1]))
        return np.concatenate([*levels[:-1], candidates.best_of(levels[-1], room)])
