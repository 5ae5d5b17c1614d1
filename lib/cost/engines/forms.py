"""The forms of draft that engines take: any static tree, a tree of equal levels, a chain, a dynamic tree."""

from dataclasses import dataclass

import numpy as np

from lib.trees.growth.rules import Eagle2
from lib.trees.tree import Tree

ANY_RANK = 1 << 20  # for engines without a limit on ranks
LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.lookup.LookupDrafter` does
TREE, LEVELS, CHAIN, DYNAMIC = "any tree", "equal levels", "chain", "dynamic tree"


@dataclass(frozen=True)
class Dynamic:
    """A tree that an engine grows anew in each round (EAGLE-2): `steps` levels; the best `top_k` nodes of each level
    get `top_k` children each, and the `nodes` best of all candidates are verified, root excluded.
    """

    steps: int
    top_k: int
    nodes: int

    def __post_init__(self):
        if self.steps < 1 or self.top_k < 1:
            raise ValueError(f"a dynamic tree of {self.steps} steps and top_k {self.top_k}: give at least 1 each")
        if not 1 <= self.nodes <= self.candidates:
            raise ValueError(f"a dynamic tree of {self.nodes} nodes: {self.steps} steps of top_k {self.top_k} give "
                             f"1 to {self.candidates}")

    @property
    def candidates(self) -> int:
        """Nodes from which the verified ones are chosen."""
        return self.top_k + (self.steps - 1) * self.top_k**2

    @property
    def rule(self) -> Eagle2:
        """The growth rule that the engine follows."""
        return Eagle2(self.top_k, self.steps, self.nodes)

    @property
    def widths(self) -> list[int]:
        """Nodes of each forward pass of the drafter: the root, then the best of every level but the last."""
        return [1, *[self.top_k] * (self.steps - 1)]

    @classmethod
    def like(cls, tree: Tree) -> "Dynamic":
        """The dynamic tree with a static one's depth and nodes, and with its widest level of nodes with children or
        its largest family as top-k: it can grow every node of the static one.
        """
        if not tree.budget:
            raise ValueError("a tree without nodes has no dynamic counterpart: switch speculation off")
        families = np.bincount(tree.parents[1:])
        inner = np.unique(tree.parents[1:])
        return cls(tree.max_depth, int(max(families.max(), np.bincount(tree.depth[inner]).max())), tree.budget)


def equal_levels(tree: Tree) -> list[int] | None:
    """[k1, k2, ..]: the number of children of every node at each level; None where nodes of one level differ."""
    families = np.bincount(tree.parents[1:], minlength=tree.size)
    levels = []
    for depth in range(tree.max_depth):
        own = set(families[tree.depth == depth].tolist())
        if len(own) != 1:
            return None
        levels.append(own.pop())
    gapless = all(tree.rank[list(tree.children(node))].tolist() == list(range(families[node]))
                  for node in range(tree.size))
    return levels if gapless else None


def length_of_chain(tree: Tree, engine: str) -> int:
    """The number of nodes of a chain of rank-0 nodes. ValueError for any other tree, and for an empty one."""
    if not tree.budget or tree.max_depth < tree.budget or tree.rank.any():
        raise ValueError(f"{engine} drafts chains, not {tree!r} with ranks {tree.rank.tolist()}: "
                         "give a chain")
    return tree.budget


def within(tree: Tree, most_rank: int) -> Tree:
    """The tree itself. ValueError where it has a rank that the engine does not know."""
    if tree.rank.max(initial=0) >= most_rank:
        raise ValueError(f"the tree has a child of rank {tree.last_rank}; the engine keeps the {most_rank} best "
                         "tokens of a position: give a tree without it")
    return tree
