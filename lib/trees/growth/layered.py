"""Rules that take a fixed number of nodes further at every level: EAGLE-2, OPT-Tree and beam search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Eagle2:
    """Expand and rerank (EAGLE-2, Li et al. 2024, section 4): the `width` nodes of a level with the largest reach get
    `width` children each, and of all candidates the `budget` with the largest reach are kept, ties to the shallower.

    Of few candidates (width + (depth - 1) width^2) the tree may stay smaller than its budget.
    """

    width: int
    max_depth: int
    budget: int

    @property
    def name(self) -> str:
        """As `growth.parse` reads it."""
        return f"eagle2:{self.width},{self.max_depth}@{self.budget}"

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best of the level."""
        return candidates.best_of(candidates.newest, self.width)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The best of all."""
        return candidates.best(self.budget)


@dataclass(frozen=True)
class OptTree:
    """OPT-Tree (Wang et al. 2025, Alg. 1): the `most` best nodes of every level are expanded, until a level adds no
    more than `delta` to the reach summed over the `budget` best of all; these are kept.

    That sum is the drafter's estimate of the accepted length. The paper has most = budget; with delta = 0 the tree is
    then the best-first one (see `DySpec`), for wider levels.
    """

    most: int
    max_depth: int
    budget: int
    delta: float = 0.0

    @property
    def name(self) -> str:
        """As `growth.parse` reads it."""
        delta = f",{self.delta:g}" if self.delta else ""
        return f"opttree:{self.most},{self.max_depth}{delta}@{self.budget}"

    @property
    def width(self) -> int:
        """No node of the best `budget` can have more children."""
        return self.budget

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best of the level, unless it gained too little."""
        before = np.sort(candidates.reach[1 : candidates.newest[0]])[::-1][: self.budget].sum()
        gained = candidates.reach[candidates.best(self.budget)].sum() - before
        return candidates.best_of(candidates.newest, self.most) if gained > self.delta else NOTHING

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The best of all."""
        return candidates.best(self.budget)


@dataclass(frozen=True)
class Beam:
    """Beam search, kept whole: at every level the `width` best paths go on, whatever they reach, up to `budget` nodes.

    The last level may be narrower. Every level is spent in full, so that depth is fixed and only breadth is chosen.
    """

    width: int
    budget: int

    @property
    def name(self) -> str:
        """As `growth.parse` reads it."""
        return f"beam:{self.width}@{self.budget}"

    @property
    def max_depth(self) -> int:
        """Levels that the budget pays for."""
        return -(-self.budget // self.width)

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The beam."""
        return candidates.best_of(candidates.newest, self.width)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The beams of all levels, the first `budget` nodes of them."""
        levels = [candidates.best_of(np.flatnonzero(candidates.depth == depth), self.width)
                  for depth in range(1, int(candidates.depth[-1]) + 1)]
        if not levels:
            return NOTHING
        room = self.budget - sum(map(len, levels[:-1]))
        return np.concatenate([*levels[:-1], candidates.best_of(levels[-1], room)])
