"""Best-first growth: the tree of the nodes of largest reach, over one distribution per node or one per depth."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates, Growth
from lib.trees.tree import Tree

Path = tuple[int, ...]  # a node as the ranks that lead to it


@dataclass(frozen=True)
class DySpec(Growth):
    """DySpec (Xiong et al. 2024): greedily the node of largest reach, for top-k children, down to `max_depth`.

    The heap (`grown_shapes.best_first`) would need one distribution at a time; here one forward pass serves a level, and
    the tree is the same. No child has a larger reach than its parent, and ties go to the shallower node, so the heap
    takes the `budget` best of all nodes. A candidate that is not among the `budget` best never will be, nor will its
    descendants; and no node below the last of the best can enter, since its reach would have to be larger. So only
    better candidates have to be expanded, and growth ends when none of the newest level is among the best.
    """

    max_depth: int
    budget: int

    @property
    def name(self) -> str:
        """In the form that `growth.parse` reads."""
        return f"dyspec:{self.max_depth}@{self.budget}"

    @property
    def width(self) -> int:
        return self.budget

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The nodes of the newest level that may still have a child in the tree."""
        first = candidates.newest[0]
        full = len(candidates.reach) > self.budget
        growing = candidates.best(self.budget - full)
        return np.sort(growing[growing >= first])


@dataclass(frozen=True)
class DDTree:
    """DDTree (arXiv 2604.12989): best first by path product over one distribution per depth, such as block drafters and
    Medusa heads give, which does not depend on the branch.

    The drafter calls `tree` once per round. max_depth: the most depths that are used; the budget if None.
    """

    budget: int
    max_depth: int = None

    def __post_init__(self):
        object.__setattr__(self, "max_depth", self.budget if self.max_depth is None else self.max_depth)

    @property
    def name(self) -> str:
        """In the form that `growth.parse` reads."""
        return f"ddtree@{self.budget}"

    def tree(self, marginals: np.ndarray) -> Tree:
        """The tree of the `budget` rank paths with the largest products.

        marginals float[D, K]: row d has the probabilities of the best tokens d + 1 ahead, non-increasing along K (K >=
        budget, or the vocabulary, so that no path is missed). A node offers its next sibling and its first child when
        it is taken, so the cost is budget x log(budget). Ties go to the shallower node, then to the better ranks. The
        tree is smaller than the budget if D and K leave too few nodes. ValueError for marginals that increase.
        """
        marginals = np.asarray(marginals, dtype=np.float64)[: self.max_depth]
        if marginals.ndim != 2 or (np.diff(marginals, axis=1) > 0).any():
            raise ValueError(f"marginals of shape {marginals.shape} must be float[depths, ranks] and must not increase "
                             "along the ranks; sort the probabilities of each depth in descending order")
        depths, ranks = marginals.shape
        chosen: list[Path] = []
        frontier = [(-marginals[0, 0], 1, (0,), 1.0)] if marginals.size else []  # with the reach of the parent
        while frontier and len(chosen) < self.budget:
            negative_reach, depth, path, above = heapq.heappop(frontier)
            chosen.append(path)
            if path[-1] + 1 < ranks:
                sibling = path[:-1] + (path[-1] + 1,)
                heapq.heappush(frontier, (-above * marginals[depth - 1, sibling[-1]], depth, sibling, above))
            if depth < depths:
                child = negative_reach * marginals[depth, 0]
                heapq.heappush(frontier, (child, depth + 1, path + (0,), -negative_reach))
        return Tree.from_choices(chosen)
