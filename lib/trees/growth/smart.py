"""SMART's marginal rule: a tree grows only while that makes a round faster, by costs that were measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates


@dataclass(frozen=True)
class Costs:
    """What a round costs, in any one unit of time: target[n] for checking n drafted nodes, draft for a level's forward.

    target float[N + 1] starts at n = 0, the root alone, and must not fall; ValueError names what does not fit.
    """

    target: tuple[float, ...]
    draft: float

    def __post_init__(self):
        steps = np.diff(self.target)
        known = np.isfinite([*self.target, self.draft]).all()
        if len(self.target) < 2 or not known or min(self.target) <= 0 or (steps < 0).any() or self.draft < 0:
            raise ValueError(f"costs target {self.target[:4]}... and draft {self.draft}: give positive times for 0, 1, "
                             "2, ... drafted nodes that do not fall (take their running maximum), and a draft >= 0")

    def best_prefix(self, gains: np.ndarray, nodes: int, tokens: float, levels: float) -> tuple[int, float]:
        """How many of `gains`, in order, to add to a tree for the most tokens a second, and these tokens a second.

        gains float[k]: tokens that a node adds; to a tree of `nodes` nodes and `tokens` expected tokens, `levels`
        forwards deep. Adding is worth while as long as gain / cost exceeds tokens / cost of the tree before it (the
        ratio of the sums lies between the two), which with costs that rise evenly ends where the ratio is largest;
        taking the largest also steps over a single dear node, such as the first of a wider matrix product.
        """
        gains = gains[: len(self.target) - 1 - nodes]
        tokens = tokens + np.concatenate([[0.0], np.cumsum(gains)])
        seconds = levels * self.draft + np.asarray(self.target)[nodes : nodes + len(tokens)]
        speed = tokens / seconds
        return int(speed.argmax()), float(speed.max())


@dataclass(frozen=True)
class Smart:
    """SMART (arXiv 2604.09731): a node is added while its gain over its cost exceeds the tree's present speed.

    Speed is (1 + summed reach) / (levels x draft + target[nodes]). Before a level is drafted its probabilities are not
    known, and how to credit them is our choice, not the paper's: a child reaches at most what its parent does, so each
    node of the newest level counts as a child of its own reach, and the level is drafted for those nodes that, best
    first, make the round faster by that measure.
    """

    max_depth: int
    budget: int
    costs: Costs

    def __post_init__(self):
        if len(self.costs.target) <= self.budget:
            raise ValueError(f"costs are known for {len(self.costs.target) - 1} drafted nodes, the budget is "
                             f"{self.budget}; give the target's cost up to the budget, or a smaller budget")

    @property
    def name(self) -> str:
        """As `growth.parse` reads it, given the same costs."""
        return f"smart:{self.max_depth}@{self.budget}"

    @property
    def width(self) -> int:
        """No node of the tree can have more children."""
        return self.budget

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the newest level as far as another level promises to pay."""
        kept, levels = self.keep(candidates), int(candidates.depth[-1])
        tokens = 1 + candidates.reach[kept].sum()
        present = tokens / (levels * self.costs.draft + self.costs.target[len(kept)])
        growing = kept[kept >= candidates.newest[0]][: self.budget - len(kept)]
        count, speed = self.costs.best_prefix(candidates.reach[growing], len(kept), tokens, levels + 1)
        return np.sort(growing[:count]) if speed > present else growing[:0]

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The best of all, as many as make the round fastest."""
        best = candidates.best(self.budget)
        count, _ = self.costs.best_prefix(candidates.reach[best], 0, 1.0, int(candidates.depth[-1]))
        return best[:count]
