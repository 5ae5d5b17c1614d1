"""Best-first growth: always the node of largest reach next; as a heap, and level by level with the same result."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates
from lib.trees.tree import Tree

Path = tuple[int, ...]  # a node as the ranks that lead to it


@dataclass(frozen=True)
class DySpec:
    """DySpec (Xiong et al. 2024): greedily the node of largest reach, for top-k children, down to `max_depth`.

    The heap (`best_first`) would ask for one distribution a node; here a level is one forward, and the tree is the
    same: no child reaches more than its parent, and ties go to the shallower, so that the heap takes the `budget` best
    of all nodes there are. What is not among the `budget` best of the candidates never will be, nor will what grows
    below it; and below the last of them nothing can be, since it would have to reach more. So expanding the others
    loses nothing, and when none of the newest level is among them nothing can enter any more.
    """

    max_depth: int
    budget: int

    @property
    def name(self) -> str:
        """As `growth.parse` reads it."""
        return f"dyspec:{self.max_depth}@{self.budget}"

    @property
    def width(self) -> int:
        """A tree of so many nodes has no node with more children."""
        return self.budget

    def expand(self, candidates: Candidates) -> np.ndarray:
        """Those of the newest level below which a node of the tree may still grow."""
        first = candidates.newest[0]
        full = len(candidates.reach) > self.budget
        growing = candidates.best(self.budget - full)
        return np.sort(growing[growing >= first])

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The best of all."""
        return candidates.best(self.budget)


def best_first(children: Callable[[Path], Sequence[float]], budget: int, max_depth: int) -> Tree:
    """The heap, one node at a time: the oracle of the rules that grow by level.

    children(path): the drafter's probabilities of the node's children by rank. Ties go to the shallower, then to the
    better ranks. The tree stays smaller than its budget where `max_depth` and the children leave too few nodes.
    """
    found: list[Path] = []
    frontier: list[tuple[float, int, Path]] = []

    def offer_children(path: Path, reach: float) -> None:
        if len(path) < max_depth:
            for rank, probability in enumerate(children(path)):
                heapq.heappush(frontier, (-reach * probability, len(path) + 1, path + (rank,)))

    offer_children((), 1.0)
    while frontier and len(found) < budget:
        negative_reach, _, path = heapq.heappop(frontier)
        found.append(path)
        offer_children(path, -negative_reach)
    return Tree.from_choices(found)
