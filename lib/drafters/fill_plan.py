"""How a language model or an EAGLE head fills a static shape: the nodes of each forward pass, and their masks.

Everything here depends on the shape and on the lengths of the uncommitted tails alone, and is made once for them. A
row's tail holds the committed tokens that its cache lacks, the root last. Tails are right-aligned, so that every root
has the same slot.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.models.native_blocks import Levels
from lib.trees.tree import ROOT, Tree


@dataclass(frozen=True, eq=False)
class Level:
    """One forward pass: the draft nodes of one depth that have children.

    sees: bool[k, internal nodes above + k], which nodes each of them attends to. slots: the nodes as an index. above:
    places of their parents among the root and the nodes forwarded before.
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
    """Where the best tokens of some nodes go: entry `best[i]` of a table [len(nodes), most] goes to slot `slots[i]`."""

    most: int
    slots: slice | Tensor
    best: slice | Tensor


@dataclass(frozen=True, eq=False)
class Tails:
    """The tails of B rows: their width W, depth int64[B, W] and mask bool[W, W] or [B, W, W].

    offsets: int64[B], each root's distance from the end of its cache. visible: bool[B, W], False at padding.
    """

    width: int
    depth: Tensor
    mask: Tensor
    offsets: Tensor
    visible: Tensor


@lru_cache(maxsize=256)
def plan(tree: Tree) -> Plan:
    """The forward passes after that of the root, which goes with the tail; leaves are never forwarded."""
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


@lru_cache(maxsize=1024)
def children(tree: Tree, nodes: tuple[int, ...]) -> Children:
    """The slots of these nodes' children, each with its place among the best tokens of its parent."""
    below = [(place, child) for place, node in enumerate(nodes) for child in tree.children(node)]
    most = max(int(tree.rank[child]) for _, child in below) + 1
    best = [place * most + int(tree.rank[child]) for place, child in below]
    return Children(most, _index([child for _, child in below]), _index(best))


def _index(places: list[int]) -> slice | Tensor:
    """These places, as a slice where they follow one another: indexing by a slice is cheaper."""
    first, last = places[0], places[-1]
    return slice(first, last + 1) if places == list(range(first, last + 1)) else torch.tensor(places)


@lru_cache(maxsize=1024)
def tails(lengths: tuple[int, ...]) -> Tails:
    """The layout of tails of these numbers of tokens, one per row."""
    width, held = max(lengths), torch.tensor(lengths)
    place, padding = torch.arange(width), width - held[:, None]
    visible = place >= padding
    itself = torch.eye(width, dtype=torch.bool)
    mask = itself | torch.ones_like(itself).tril() & visible[:, None]
    return Tails(width, (place - padding).clamp_min(0), _shared(mask), held - 1, visible)


@lru_cache(maxsize=4096)
def planned_block(waiting: Tails, planned: Level) -> tuple[Tensor, Tensor]:
    """Depth and mask of a level of a static shape after such tails, as `block` makes them."""
    return block(waiting, planned.depth, planned.sees.expand(len(waiting.offsets), -1, -1))


def block(waiting: Tails, depth: int, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and mask of a forward pass of k nodes of one depth.

    sees bool[B, k, forwarded + k]: which of the nodes forwarded before and of themselves the nodes attend to. Returns
    depth int64[B, k] from the end of the cache, and the mask over tail, earlier nodes and themselves.
    """
    nodes = sees.shape[1]
    tail = waiting.visible[:, None].expand(-1, nodes, -1)
    return (waiting.offsets[:, None] + depth).expand(-1, nodes), _shared(torch.cat([tail, sees], dim=-1))


def _shared(mask: Tensor) -> Tensor:
    """The mask of a single row without its batch dimension, so that backends need not compare rows."""
    return mask[0] if len(mask) == 1 else mask


@lru_cache(maxsize=1024)
def native_levels(shape: Tree, waiting: Tails) -> Levels:
    """A shape's levels after such tails, its root's first, for a native call that fills them all."""
    root = torch.tensor([ROOT]), _native_children(shape, [ROOT]), None, None
    return Levels(shape.size, [root, *(
        (torch.tensor(level.nodes), _native_children(shape, level.nodes), *planned_block(waiting, level))
        for level in plan(shape).levels)])


def _native_children(shape: Tree, nodes: Sequence[int]) -> Tensor:
    """int64[c, 3]: for each child of these nodes its parent's place among them, its rank, itself; siblings by rank."""
    return torch.tensor(sorted((place, int(shape.rank[child]), child)
                               for place, node in enumerate(nodes) for child in shape.children(node)))


def fills_natively(drafter, shape: Tree, choices: int) -> bool:
    """Whether a native call can fill the shape: it gives no probabilities, and children among `choices` best tokens."""
    return drafter.proposal == "top_k" and not drafter.keep_probs and 0 < shape.budget and shape.last_rank < choices
