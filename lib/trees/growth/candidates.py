"""The candidate nodes of a growing tree, the base of growth rules, and the loop that grows a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lib.trees.tree import NO_PARENT, ROOT, Tree


@dataclass(frozen=True)
class Candidates:
    """All candidate nodes so far, level by level; within a level by parent, then by rank. Node 0 is the root.

    parents, rank, depth: int64[c]. reach: float64[c], the product of the drafter's probabilities along the node's path,
    1 for the root; it estimates the probability that the node is accepted, and is never larger than the parent's.
    """

    parents: np.ndarray
    rank: np.ndarray
    depth: np.ndarray
    reach: np.ndarray

    @classmethod
    def root(cls) -> Candidates:
        """The root alone."""
        return cls(np.array([NO_PARENT]), np.array([0]), np.array([0]), np.array([1.0]))

    @property
    def newest(self) -> np.ndarray:
        """int64[]: the nodes of the deepest level."""
        return np.arange(np.searchsorted(self.depth, self.depth[-1]), len(self.depth))

    @cached_property
    def _order(self) -> np.ndarray:
        return 1 + np.argsort(-self.reach[1:], kind="stable")  # stable: ties go to the shallower, then to the first

    def best(self, count: int) -> np.ndarray:
        """int64[<= count]: the draft nodes of largest reach, in that order; together with the root they form a tree."""
        return self._order[:count]

    def best_of(self, nodes: np.ndarray, count: int) -> np.ndarray:
        """int64[<= count]: the nodes of largest reach among `nodes`, the first of equals, in node order."""
        return np.sort(nodes[np.argsort(-self.reach[nodes], kind="stable")[:count]])

    def with_children(self, nodes: Sequence[int], probs: np.ndarray) -> Candidates:
        """These candidates and the children of `nodes` (of the deepest level, in node order), one level deeper.

        probs float[len(nodes), width]: the drafter's probabilities of each node's best tokens, non-increasing.
        """
        nodes, (_, width) = np.asarray(nodes, dtype=np.int64), probs.shape
        return Candidates(np.concatenate([self.parents, np.repeat(nodes, width)]),
                          np.concatenate([self.rank, np.tile(np.arange(width), len(nodes))]),
                          np.concatenate([self.depth, np.full(len(nodes) * width, self.depth[-1] + 1)]),
                          np.concatenate([self.reach, (self.reach[nodes, None] * probs).ravel()]))

    def tree(self, kept: np.ndarray) -> Grown:
        """The tree of the root and of these draft nodes, which must include each node's parent."""
        nodes = np.concatenate([[ROOT], np.sort(kept)])
        parents = np.searchsorted(nodes, self.parents[nodes])
        parents[0] = NO_PARENT
        return Grown(Tree(parents, self.rank[nodes]), nodes, self.reach[nodes])


@dataclass(frozen=True)
class Grown:
    """A grown tree; the candidate of each of its nodes, int64[m], and that candidate's reach, float64[m]."""

    tree: Tree
    nodes: np.ndarray
    reach: np.ndarray


class Growth:
    """The base of growth rules: frozen values without state.

    family: its name in `registry.RULES`. numbers: the attributes that stand in a rule's name after it.
    budget: the most draft nodes of a tree. max_depth: the most levels, and so forward passes of the drafter. width: the
    children of an expanded node (fewer if the vocabulary is smaller).
    """

    family: str
    numbers: tuple[str, ...]
    budget: int
    max_depth: int
    width: int

    @property
    def name(self) -> str:
        """The rule in the form that `growth.parse` reads."""
        return f"{self.family}:{','.join(f'{getattr(self, number):g}' for number in self.numbers)}@{self.budget}"

    def expand(self, candidates: Candidates) -> np.ndarray:
        """int64[]: nodes of the deepest level that get children in the next forward pass, in node order; or none."""
        raise NotImplementedError(f"{type(self).__name__} does not define expand")

    def keep(self, candidates: Candidates) -> np.ndarray:
        """int64[<= budget]: the draft nodes that the tree keeps, by default the best ones."""
        return candidates.best(self.budget)

    def at_most(self, depth: int) -> Growth:
        """The rule with trees of at most `depth` levels."""
        return self if self.max_depth <= depth else replace(self, max_depth=depth)

    def keep_all(self, rows: Sequence[Candidates]) -> list[np.ndarray]:
        """What each tree of a batch keeps, for rules that decide it together; by default each by itself."""
        return [self.keep(candidates) for candidates in rows]


def next_level(rule: Growth, candidates: Candidates) -> np.ndarray:
    """The nodes to expand next, int64[]: the root, then the rule's choice; a tree of n nodes has at most n levels."""
    depth = candidates.depth[-1]
    if depth >= min(rule.max_depth, rule.budget):
        return np.zeros(0, dtype=np.int64)
    return np.array([ROOT]) if depth == 0 else rule.expand(candidates)


def grow(rule: Growth, children: Callable[[Candidates, np.ndarray], np.ndarray]) -> Grown:
    """A tree grown level by level, with one call of `children` per level.

    children(candidates, nodes) gives float[len(nodes), width]: the probabilities of each node's best tokens.
    """
    candidates = Candidates.root()
    while len(nodes := next_level(rule, candidates)):
        candidates = candidates.with_children(nodes, children(candidates, nodes))
    return candidates.tree(rule.keep(candidates))
