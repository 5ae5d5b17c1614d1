"""Growth rules: how a tree grows from a drafter's probabilities in every round, with one forward pass per level.

A rule decides which nodes of the newest level get children next, and which candidates the tree keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import NamedTuple

import numpy as np

from lib.trees.tree import NO_PARENT, ROOT, Tree

DEPTH = 16  # the most levels, if a name does not give them


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
        return cls(np.array([NO_PARENT]), np.array([0]), np.array([0]), np.array([1.0]))

    @property
    def levels(self) -> int:
        """The number of levels below the root."""
        return int(self.depth[-1])

    @property
    def newest(self) -> int:
        """The first node of the deepest level."""
        return int(np.searchsorted(self.depth, self.depth[-1]))

    @cached_property
    def _order(self) -> np.ndarray:
        return 1 + np.argsort(-self.reach[1:], kind="stable")  # stable: ties go to the shallower, then to the first

    def best(self, count: int | None = None) -> np.ndarray:
        """int64[<= count]: the draft nodes of largest reach, in that order; together with the root they form a tree."""
        return self._order[:count]

    def with_children(self, nodes: Sequence[int], probs: np.ndarray) -> Candidates:
        """These candidates and the children of `nodes` (of the deepest level, in node order), one level deeper.

        probs: float[len(nodes), width] of each node's best tokens, non-increasing.
        """
        nodes, (_, width) = np.asarray(nodes, dtype=np.int64), probs.shape
        return Candidates(np.concatenate([self.parents, np.repeat(nodes, width)]),
                          np.concatenate([self.rank, np.tile(np.arange(width), len(nodes))]),
                          np.concatenate([self.depth, np.full(len(nodes) * width, self.levels + 1)]),
                          np.concatenate([self.reach, (self.reach[nodes, None] * probs).ravel()]))

    def tree(self, kept: np.ndarray) -> Grown:
        """The tree of the root and of these draft nodes, which must include each node's parent."""
        nodes = np.concatenate([[ROOT], np.sort(kept)])
        parents = np.searchsorted(nodes, self.parents[nodes])
        parents[0] = NO_PARENT
        return Grown(Tree(parents, self.rank[nodes]), nodes, self.reach[nodes])


class Grown(NamedTuple):
    """A grown tree; the candidate of each of its nodes, int64[m], and that candidate's reach, float64[m]."""

    tree: Tree
    nodes: np.ndarray
    reach: np.ndarray


@dataclass(frozen=True)
class Growth:
    """The base of growth rules, which are frozen values without state.

    budget: the most draft nodes of a tree. max_depth: the most levels, and so forward passes of the drafter. A rule
    also has `width`, the most children of a node, its `name` as `trees.named` reads it, and `expand(candidates)`:
    int64[], in node order, the nodes of the deepest level that get children in the next forward pass.
    """

    budget: int
    max_depth: int = DEPTH

    def __post_init__(self):  # a tree of n nodes has at most n levels
        budget = whole_number(self.budget, "budget", least=0)
        whole_number(self.width, "width", least=min(1, budget))
        object.__setattr__(self, "max_depth", min(whole_number(self.max_depth, "max_depth", least=0), budget))

    def keep(self, candidates: Candidates) -> np.ndarray:
        """int64[<= budget]: the draft nodes that the tree keeps."""
        return candidates.best(self.budget)

    def at_most(self, depth: int) -> Growth:
        """The rule with trees of at most `depth` levels."""
        return self if self.max_depth <= depth else replace(self, max_depth=depth)


def next_level(rule: Growth, candidates: Candidates) -> np.ndarray:
    """The nodes to expand next, int64[]: the root, then the rule's choice."""
    if candidates.levels >= rule.max_depth:
        return np.zeros(0, dtype=np.int64)
    return rule.expand(candidates) if candidates.levels else np.array([ROOT])


def grow(rule: Growth, children: Callable[[Candidates, np.ndarray], np.ndarray]) -> Grown:
    """A tree grown level by level, with one call of `children` per level.

    children(candidates, nodes) gives float[len(nodes), width]: the probabilities of each node's best tokens.
    """
    candidates = Candidates.root()
    while len(nodes := next_level(rule, candidates)):
        candidates = candidates.with_children(nodes, children(candidates, nodes))
    return candidates.tree(rule.keep(candidates))


@dataclass(frozen=True)
class Eagle2(Growth):
    """EAGLE-2 (Li et al. 2024, section 4): a level's `width` best get `width` children each, the `budget` best stay."""

    width: int = 8

    @property
    def name(self) -> str:
        return f"eagle2:{self.width},{self.max_depth}@{self.budget}"

    def expand(self, candidates: Candidates) -> np.ndarray:
        ordered = candidates.best()
        return np.sort(ordered[ordered >= candidates.newest][: self.width])


@dataclass(frozen=True)
class Costs:
    """The cost of a round, in any unit of time: target[n] to verify n draft nodes, draft to draft a level."""

    target: tuple[float, ...]
    draft: float

    def __post_init__(self):
        object.__setattr__(self, "target", tuple(self.target))  # from JSON it is a list
        finite, falls = np.isfinite([*self.target, self.draft]).all(), (np.diff(self.target) < 0).any()
        if len(self.target) < 2 or not finite or falls or min(self.target) <= 0 or self.draft < 0:
            raise ValueError(f"costs target {self.target[:4]}... and draft {self.draft}: give positive times for 0, 1, "
                             "2, ... draft nodes that do not decrease (take their running maximum), and a draft >= 0")

    def speeds(self, reach: np.ndarray, levels: int) -> np.ndarray:
        """float[k + 1]: expected tokens per unit of time of trees of the first 0 .. k nodes, of these reaches."""
        tokens = 1 + np.concatenate([[0.0], np.cumsum(reach)])
        return tokens / (levels * self.draft + np.asarray(self.target)[: len(tokens)])


@dataclass(frozen=True)
class BestFirst(Growth):
    """Greedily the node of largest reach, for top-k children. The family tells what it grows over and when it stops:

    "dyspec": one distribution per node; no stop (DySpec, Xiong et al. 2024).
    "ddtree": one distribution per depth, as block drafters and Medusa heads give; no stop (DDTree, arXiv 2604.12989).
    "opttree": at most `level_width` nodes of a level are expanded, until a level adds no more than `delta` to the
        summed reach of the `budget` best candidates (OPT-Tree, Wang et al. 2025, Alg. 1; there level_width = budget).
    "smart": a node is added while its reach over its cost exceeds the tree's present speed (SMART, arXiv 2604.09731).
        The probabilities of a level are unknown before it is drafted. Our choice, not the paper's, is to estimate them
        from above: each node of the newest level counts as a child of its own reach, and the level is drafted for those
        nodes that, best first, make the round faster.

    One forward pass serves a level, yet the tree is that of a heap which takes one node at a time, as no child has a
    larger reach than its parent. A candidate beyond the `budget` best never enters, nor does a child of the last of
    these. So growth ends when none of the newest level is among the others.
    """

    family: str = "dyspec"
    level_width: int | None = None
    delta: float | None = None
    costs: Costs | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.level_width is not None:
            whole_number(self.level_width, "width", least=min(1, self.budget))
        if self.costs is not None and len(self.costs.target) <= self.budget:
            raise ValueError(f"the costs cover {len(self.costs.target) - 1} draft nodes, the budget is {self.budget}; "
                             "give the target's cost up to the budget, or a smaller budget")

    @property
    def width(self) -> int:
        return self.budget

    @property
    def name(self) -> str:
        numbers = [self.max_depth] if self.level_width is None else [self.level_width, self.max_depth]
        numbers += [self.delta] if self.delta else []
        return f"{self.family}:{','.join(f'{number:g}' for number in numbers)}@{self.budget}"

    def expand(self, candidates: Candidates) -> np.ndarray:
        if self.costs is not None:
            return np.sort(self._worth_drafting(candidates, self.costs))
        is_full = len(candidates.reach) > self.budget
        growing = candidates.best(self.budget - is_full)  # no child of a full tree's last node can enter
        growing = growing[growing >= candidates.newest][: self.level_width]
        if self.delta is not None:
            before = np.sort(candidates.reach[1 : candidates.newest])[::-1][: self.budget].sum()
            gain = candidates.reach[candidates.best(self.budget)].sum() - before
            growing = growing if gain > self.delta else growing[:0]
        return np.sort(growing)

    def keep(self, candidates: Candidates) -> np.ndarray:
        best = candidates.best(self.budget)
        if self.costs is None:
            return best
        return best[: self.costs.speeds(candidates.reach[best], candidates.levels).argmax()]

    def _worth_drafting(self, candidates: Candidates, costs: Costs) -> np.ndarray:
        """The nodes of the newest level to expand, if another level is expected to make the round faster."""
        kept, reach = self.keep(candidates), candidates.reach
        growing = kept[kept >= candidates.newest][: self.budget - len(kept)]
        present = costs.speeds(reach[kept], candidates.levels)[-1]
        speeds = costs.speeds(reach[np.concatenate([kept, growing])], candidates.levels + 1)[len(kept):]
        return growing[: speeds.argmax()] if speeds.max() > present else growing[:0]


def whole_number(value, name: str, least: int = 1) -> int:
    """The value as an integer. ValueError, with the name, if it is not whole or less than `least`."""
    if not isinstance(value, Real) or value % 1 or value < least:  # infinite % 1 is NaN, which counts as true
        raise ValueError(f"{name} is {value}: give a whole number of at least {least}")
    return int(value)
