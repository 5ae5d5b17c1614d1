"""The growth rules: best-first trees, trees with a fixed number of expanded nodes per level, and trees that pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar

import numpy as np

from lib.trees.growth.candidates import Candidates, Growth

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class BestFirst(Growth):
    """Greedily the node of largest reach, for top-k children, down to `max_depth`. family: its name in the registry, by
    the distributions over which it grows:

    "dyspec": one per node (DySpec, Xiong et al. 2024).
    "ddtree": one per depth, which does not depend on the branch, as block drafters and Medusa heads give (DDTree, arXiv
        2604.12989).
    "pctree": one per node, which one forward pass and each node's parent token give, as DSpark's head does (PCTree,
        arXiv 2608.02123).

    The heap (`grown_shapes.best_first`) would need one distribution at a time; here one forward pass serves a level,
    and the tree is the same. No child has a larger reach than its parent, and ties go to the shallower node, so the
    heap takes the `budget` best of all nodes. A candidate that is not among the `budget` best never will be, nor will
    its descendants; and no node below the last of the best can enter, since its reach would have to be larger. So only
    better candidates have to be expanded, and growth ends when none of the newest level is among the best.
    """

    numbers: ClassVar = ("max_depth",)
    width = property(attrgetter("budget"))
    max_depth: int
    budget: int
    family: str = "dyspec"

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The nodes of the newest level that may still have a child in the tree."""
        first = candidates.newest[0]
        full = len(candidates.reach) > self.budget
        growing = candidates.best(self.budget - full)
        return np.sort(growing[growing >= first])


@dataclass(frozen=True)
class Eagle2(Growth):
    """Expand and rerank (EAGLE-2, Li et al. 2024, section 4): the `width` nodes of a level with the largest reach get
    `width` children each, and the `budget` candidates with the largest reach are kept; ties go to the shallower node.

    If there are few candidates (width + (depth - 1) width^2), the tree is smaller than its budget.
    """

    family: ClassVar = "eagle2"
    numbers: ClassVar = ("width", "max_depth")
    width: int
    max_depth: int
    budget: int

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the newest level."""
        return candidates.best_of(candidates.newest, self.width)


@dataclass(frozen=True)
class OptTree(Growth):
    """OPT-Tree (Wang et al. 2025, Alg. 1): the `most` best nodes of every level are expanded, until a level adds no
    more than `delta` to the summed reach of the `budget` best candidates; these are kept.

    That sum is the drafter's estimate of the accepted length. The paper has most = budget; with delta = 0 the tree is
    then the best-first tree (see `BestFirst`), with wider levels.
    """

    family: ClassVar = "opttree"
    numbers: ClassVar = ("most", "max_depth", "delta")
    width = property(attrgetter("budget"))
    most: int
    max_depth: int
    budget: int
    delta: float = 0.0

    @property
    def name(self) -> str:
        """As for any rule; a delta of 0 is left out."""
        return super().name.replace(",0@", "@")

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the level, unless the level gained too little."""
        before = np.sort(candidates.reach[1 : candidates.newest[0]])[::-1][: self.budget].sum()
        gained = candidates.reach[candidates.best(self.budget)].sum() - before
        return candidates.best_of(candidates.newest, self.most) if gained > self.delta else NOTHING


@dataclass(frozen=True)
class Beam(Growth):
    """Beam search that keeps all levels: the `width` best paths of each level continue, up to `budget` nodes.

    The last level may be narrower. max_depth: the levels that the budget allows if None; the rule chooses only which
    nodes a level has.
    """

    family: ClassVar = "beam"
    numbers: ClassVar = ("width",)
    width: int
    budget: int
    max_depth: int = None

    def __post_init__(self):
        levels = -(-self.budget // self.width)
        object.__setattr__(self, "max_depth", levels if self.max_depth is None else self.max_depth)

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the newest level."""
        return candidates.best_of(candidates.newest, self.width)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The first `budget` nodes of all levels' beams."""
        levels = [candidates.best_of(np.flatnonzero(candidates.depth == depth), self.width)
                  for depth in range(1, int(candidates.depth[-1]) + 1)]
        if not levels:
            return NOTHING
        room = self.budget - sum(map(len, levels[:-1]))
        return np.concatenate([*levels[:-1], candidates.best_of(levels[-1], room)])


@dataclass(frozen=True)
class Fork(Growth):
    """A chain that branches where certainty ends (our rule): favourites, while the drafter gives each at least a chance
    of `certain`. The first that has less stands beside its best siblings, `branches` nodes in all, and favourites
    continue each of them until the budget is used.

    Delayed expansion (arXiv 2602.16994) branches after a path of a given length: the static shape "delayed:2,3@N".
    """

    family: ClassVar = "fork"
    numbers: ClassVar = ("branches", "certain", "max_depth")
    width = property(attrgetter("branches"))
    branches: int
    certain: float
    max_depth: int
    budget: int

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The newest level's nodes that continue, as many as the budget has children left for."""
        levels = self._levels(candidates)
        return candidates.best_of(levels[-1], max(0, self.budget - sum(map(len, levels))))

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The levels that continue; of the last one the best nodes, as many as the budget has room for."""
        *above, last = self._levels(candidates) or [NOTHING]
        return np.concatenate([*above, candidates.best_of(last, self.budget - sum(map(len, above)))])

    def _levels(self, candidates: Candidates) -> list[np.ndarray]:
        """The nodes of each level that are favourites or, where certainty ends, siblings."""
        levels, reach, forked = [], 1.0, False
        for depth in range(1, int(candidates.depth[-1]) + 1):
            level = np.flatnonzero(candidates.depth == depth)
            favourites = level[candidates.rank[level] == 0]
            ends = not forked and candidates.reach[favourites[0]] < self.certain * reach
            levels.append(level[candidates.rank[level] < self.branches] if ends else favourites)
            forked, reach = forked or ends, candidates.reach[favourites[0]]
        return levels


@dataclass(frozen=True)
class Costs:
    """The cost of a round, in any unit of time: target[n] to verify n draft nodes, draft per forward pass of a level.

    target: float[N + 1], from n = 0, the root alone; must not decrease. ValueError names the values that do not fit.
    """

    target: tuple[float, ...]
    draft: float

    def __post_init__(self):
        object.__setattr__(self, "target", tuple(self.target))  # from JSON it is a list
        steps = np.diff(self.target)
        finite = np.isfinite([*self.target, self.draft]).all()
        if len(self.target) < 2 or not finite or min(self.target) <= 0 or (steps < 0).any() or self.draft < 0:
            raise ValueError(f"costs target {self.target[:4]}... and draft {self.draft}: give positive times for 0, 1, "
                             "2, ... draft nodes that do not decrease (take their running maximum), and a draft >= 0")

    def check_covers(self, budget: int) -> None:
        """ValueError where a tree of this budget has no cost."""
        if len(self.target) <= budget:
            raise ValueError(f"the costs cover {len(self.target) - 1} draft nodes, the budget is {budget}; give the "
                             "target's cost up to the budget, or a smaller budget")

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

    family: ClassVar = "smart"
    numbers: ClassVar = ("max_depth",)
    width = property(attrgetter("budget"))
    max_depth: int
    budget: int
    costs: Costs

    def __post_init__(self):
        self.costs.check_covers(self.budget)

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The best nodes of the newest level, if another level is expected to make the round faster."""
        nodes, levels = self.keep(candidates), int(candidates.depth[-1])
        tokens = 1 + candidates.reach[nodes].sum()
        present = tokens / (levels * self.costs.draft + self.costs.target[len(nodes)])
        growing = nodes[nodes >= candidates.newest[0]][: self.budget - len(nodes)]
        count, speed = self.costs.best_prefix(candidates.reach[growing], len(nodes), tokens, levels + 1)
        return np.sort(growing[:count]) if speed > present else growing[:0]

    def keep(self, candidates: Candidates) -> np.ndarray:
        """The best candidates, as many as make the round fastest."""
        best = candidates.best(self.budget)
        count, _ = self.costs.best_prefix(candidates.reach[best], 0, 1.0, int(candidates.depth[-1]))
        return best[:count]


@dataclass(frozen=True)
class Auto(Growth):
    """A budget chosen anew in each round: of the nodes that a rule grew, best first, as many as give the most expected
    tokens per unit of time (our rule; DSpark's scheduler, arXiv 2607.05147, admits tokens of chains so).

    Costs need not rise evenly, so all numbers of nodes are compared, up to the rule's budget; growing ends where a
    further level cannot pay by itself. Rows of a batch keep as many nodes each, since the target verifies a batch at
    the width of its largest tree: costs are those of the batch.
    """

    budget = property(attrgetter("rule.budget"))
    max_depth = property(attrgetter("rule.max_depth"))
    width = property(attrgetter("rule.width"))
    rule: Growth
    costs: Costs

    def __post_init__(self):
        self.costs.check_covers(self.rule.budget)

    @property
    def name(self) -> str:
        """The rule's name with "auto" in the place of its budget."""
        return f"{self.rule.name.partition('@')[0]}@auto"

    def at_most(self, depth: int) -> Auto:
        """The same, of the rule with trees of at most `depth` levels."""
        return replace(self, rule=self.rule.at_most(depth))

    def expand(self, candidates: Candidates) -> np.ndarray:
        """The rule's nodes, unless another level cannot make the round faster: each counts as a child of its own reach,
        the most that its children can add together.
        """
        nodes, levels = self.rule.expand(candidates), int(candidates.depth[-1])
        present, hoped = candidates.reach[candidates.best(self.budget)], candidates.reach[nodes]
        hoped = np.sort(np.concatenate([present, hoped]))[::-1]
        _, speed = self.costs.best_prefix(present, 0, 1.0, levels)
        return nodes if self.costs.best_prefix(hoped, 0, 1.0, levels + 1)[1] > speed else NOTHING

    def keep(self, candidates: Candidates) -> np.ndarray:
        """As `keep_all`, of one row."""
        return self.keep_all([candidates])[0]

    def keep_all(self, rows: Sequence[Candidates]) -> list[np.ndarray]:
        """The best candidates of each row, as many as make the batch's round fastest."""
        best = [candidates.best(self.budget) for candidates in rows]
        gains = np.zeros(max(map(len, best)))
        for candidates, nodes in zip(rows, best):
            gains[: len(nodes)] += candidates.reach[nodes]
        levels = max(int(candidates.depth[-1]) for candidates in rows)
        count, _ = self.costs.best_prefix(gains, 0, float(len(rows)), levels)
        return [nodes[:count] for nodes in best]
