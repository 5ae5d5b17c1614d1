"""SMART's marginal rule: a tree grows as long as this makes a round faster, by measured costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates, Growth


@dataclass(frozen=True)
class Costs:
    """The cost of a round, in any unit of time: target[n] to verify n draft nodes, draft per forward pass of a level.

    target: float[N + 1], from n = 0, the root alone; must not decrease. ValueError names the values that do not fit.
    """

    target: tuple[float, ...]
    draft: float

    def __post_init__(self):
        steps = np.diff(self.target)
        finite = np.isfinite([*self.target, self.draft]).all()
        if len(self.target) < 2 or not finite or min(self.target) <= 0 or (steps < 0).any() or self.draft < 0:
            raise ValueError(f"costs target {self.target[:4]}... and draft {self.draft}: give positive times for 0, 1, "
                             "2, ... draft nodes that do not decrease (take their running maximum), and a draft >= 0")

    def best_prefix(self, gains: np.ndarray, nodes: int, tokens: float, levels: float) -> tuple[int, float]:
        """How many nodes to add to a tree for the most tokens per unit of time, and that speed.

        gains: float[k], the expected tokens that each further node adds, in order. nodes, tokens, levels: the tree's
        nodes, expected tokens and forward passes. A node pays as long as its gain / cost exceeds tokens / cost of the
        tree without it (the ratio of the sums lies between the two); with evenly rising costs that ends at the largest
        ratio. Taking the largest ratio also steps over a single costly node, such as the first of a wider matrix
        product.
        """
        gains = gains[: len(self.target) - 1 - nodes]
        tokens = tokens + np.concatenate([[0.0], np.cumsum(gains)])
        seconds = levels * self.draft + np.asarray(self.target)[nodes : nodes + len(tokens)]
        speed = tokens / seconds
        return int(speed.argmax()), float(speed.max())


@dataclass(frozen=True)
class Smart(Growth):
    """SMART (arXiv 2604.09731): a node is added while its gain over its cost exceeds the tree's present speed.

    Speed is (1 + summed reach) / (levels x draft + target[nodes]). The probabilities of a level are unknown before it
    is drafted. Our choice, not the paper's, is to estimate them from above: each node of the newest level counts as a
    child of its own reach, and the level is drafted for those nodes that, best first, make the round faster.
    """

    max_depth: int
    budget: int
    costs: Costs

    def __post_init__(self):
        if len(self.costs.target) <= self.budget:
            raise ValueError(f"the costs cover {len(self.costs.target) - 1} draft nodes, the budget is {self.budget}; "
                             "give the target's cost up to the budget, or a smaller budget")

    @property
    def name(self) -> str:
        """In the form that `growth.parse` reads, with the same costs."""
        return f"smart:{self.max_depth}@{self.budget}"

    @property
    def width(self) -> int:
        return self.budget

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the newest level, if another level is expected to make the round faster."""
        kept, levels = self.keep(candidates), int(candidates.depth[-1])
        tokens = 1 + candidates.reach[kept].sum()
        present = tokens / (levels * self.costs.draft + self.costs.target[len(kept)])
        growing = kept[kept >= candidates.newest[0]][: self.budget - len(kept)]
        count, speed = self.costs.best_prefix(candidates.reach[growing], len(kept), tokens, levels + 1)
        return np.sort(growing[:count]) if speed > present else growing[:0]

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The best candidates, as many as make the round fastest."""
        best = candidates.best(self.budget)
        count, _ = self.costs.best_prefix(candidates.reach[best], 0, 1.0, int(candidates.depth[-1]))
        return best[:count]
