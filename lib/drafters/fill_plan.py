"""The plan by which a static shape is filled: which nodes a level forwards, and what each of them sees."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lib.trees.tree import ROOT, Tree


@dataclass(frozen=True, eq=False)
class Level:
    """One forward: the drafted nodes of one depth that have children; `sees` bool[k, internal nodes above + k].

    slots: the nodes, as an index. above: where their parents stand among the root and the nodes forwarded before.
    """

    depth: int
    nodes: tuple[int, ...]
    sees: Tensor
    slots: slice | Tensor
    above: slice | Tensor


@dataclass(frozen=True)
class Plan:
    """Levels in order of depth, from depth 1; `place` maps a forwarded node to its place among all of them, from 0."""

    levels: tuple[Level, ...]
    place: dict[int, int]


@dataclass(frozen=True)
class Children:
    """Where the best tokens of some nodes go: of a table [len(nodes), most] of them, entry `best[i]` to slot
    `slots[i]`.
    """

    most: int
    slots: slice | Tensor
    best: slice | Tensor


@lru_cache(maxsize=1024)
def children(tree: Tree, nodes: tuple[int, ...]) -> Children:
    """The slots of these nodes' children, each with its own place among its siblings' best tokens."""
    below = [(place, child) for place, node in enumerate(nodes) for child in tree.children(node)]
    most = max(int(tree.rank[child]) for _, child in below) + 1
    best = [place * most + int(tree.rank[child]) for place, child in below]
    return Children(most, _index([child for _, child in below]), _index(best))


def _index(places: list[int]) -> slice | Tensor:
    """These places, as a slice where they follow one another: it is cheaper to take."""
    first, last = places[0], places[-1]
    return slice(first, last + 1) if places == list(range(first, last + 1)) else torch.tensor(places)


@lru_cache(maxsize=256)
def plan(tree: Tree) -> Plan:
    """How a language model fills a tree: first the root, with what is not cached yet; leaves are never forwarded."""
    parents = set(tree.parents[1:].tolist()) - {ROOT}
    levels, place = [], {}
    for depth in range(1, tree.max_depth):
        nodes = [node for node in np.flatnonzero(tree.depth == depth).tolist() if node in parents]
        above = [1 + place.get(int(tree.parents[node]), -1) for node in nodes]
        for node in nodes:
            place[node] = len(place)
        sees = torch.tensor(tree.mask[np.ix_(nodes, list(place))])
        levels.append(Level(depth, tuple(nodes), sees, _index(nodes), _index(above)))
    return Plan(tuple(levels), place)
