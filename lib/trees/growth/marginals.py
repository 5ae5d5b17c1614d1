"""Growth over one distribution a depth, as block drafters and Medusa heads give it: the same whatever came before."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from lib.trees.tree import Tree


@dataclass(frozen=True)
class DDTree:
    """DDTree (arXiv 2604.12989): best first by path product over marginals, which do not know their branch.

    A drafter that gives one distribution a depth calls `tree` once a round; depths end where its distributions do.
    """

    budget: int

    @property
    def name(self) -> str:
        """As `growth.parse` reads it."""
        return f"ddtree@{self.budget}"

    def tree(self, marginals: np.ndarray) -> Tree:
        """The tree of the `budget` rank paths with the largest products.

        marginals float[D, K]: row d the probabilities of the best tokens d + 1 ahead, non-increasing along K (K >=
        budget, or the vocabulary, for no path to be missed). Nodes are offered lazily, a node's next sibling and first
        child as it is taken, so that the cost is budget x log(budget). Ties go to the shallower, then to the better
        ranks. Smaller than the budget where D and K leave too few nodes. ValueError for marginals that rise.
        """
        marginals = np.asarray(marginals, dtype=np.float64)
        if marginals.ndim != 2 or (np.diff(marginals, axis=1) > 0).any():
            raise ValueError(f"marginals of shape {marginals.shape} must be float[depths, ranks] and not rise along "
                             "the ranks; sort each depth's probabilities downwards")
        depths, ranks = marginals.shape
        found: list[tuple[int, ...]] = []
        frontier = [(-marginals[0, 0], 1, (0,), 1.0)] if marginals.size else []  # with the reach of the parent
        while frontier and len(found) < self.budget:
            negative_reach, depth, path, above = heapq.heappop(frontier)
            found.append(path)
            if path[-1] + 1 < ranks:
                sibling = path[:-1] + (path[-1] + 1,)
                heapq.heappush(frontier, (-above * marginals[depth - 1, sibling[-1]], depth, sibling, above))
            if depth < depths:
                child = negative_reach * marginals[depth, 0]
                heapq.heappush(frontier, (child, depth + 1, path + (0,), -negative_reach))
        return Tree.from_choices(found)
