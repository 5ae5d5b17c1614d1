"""A draft's first levels as a draft of its own."""

from functools import lru_cache

import numpy as np

from lib.trees.tree import Tree
from lib.verify.draft import Draft


def cut(draft: Draft, depth: int) -> tuple[Draft, list[int]]:
    """The draft down to a depth, and for each of its nodes the node of the whole draft."""
    if draft.tree.max_depth <= depth:
        return draft, list(range(draft.tree.size))
    tree, kept = levels(draft.tree, depth)
    return draft.part(tree, kept), kept


@lru_cache(maxsize=256)
def levels(tree: Tree, depth: int) -> tuple[Tree, list[int]]:
    """The tree down to a depth, and for each of its nodes the node of the whole tree; their order stays."""
    kept = np.flatnonzero(tree.depth <= depth)
    place = np.full(tree.size, -1)
    place[kept] = np.arange(len(kept))
    return Tree([-1, *place[tree.parents[kept[1:]]]], tree.rank[kept]), kept.tolist()
