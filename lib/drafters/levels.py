"""The forward passes in which a draft model or a head fills a tree: the nodes of each level, their positions and masks.

Those of a static shape are made once for a batch's lengths of tails. A row's tail holds the committed tokens that its
cache lacks, the root last. Tails are right-aligned, so that every root has the same slot.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.forward.native import Levels
from lib.trees.tree import Tree


@dataclass(frozen=True, eq=False)
class Level:
    """The nodes of one depth that get children; past the root, one forward pass.

    nodes: the slots of a static shape; of trees that grow the candidates int64[<= k] of each row.
    sees: bool[k, internal nodes above + k], or [B, ..], which nodes each of them attends to. above: int64[k] or [B, k],
        places of their parents among the root and the nodes forwarded before. None where nothing is forwarded: at the
        root, which goes with the tail, and for heads that draft in one forward pass.
    children: int64[c, 3] of a static shape, for each child its parent's index in `nodes`, its rank and its slot.
    """

    depth: int
    nodes: Sequence
    sees: Tensor | None = None
    above: Tensor | None = None
    children: Tensor | None = None


@lru_cache(maxsize=256)
def plan(tree: Tree) -> tuple[tuple[Level, ...], dict[int, int]]:
    """The levels of a static shape, the root's first, and the place, from 0, of each node among those that are
    forwarded: all with children but the root, which is forwarded with the tail.
    """
    levels, places = [], {}
    for depth in range(tree.max_depth):
        nodes = [node for node in np.flatnonzero(tree.depth == depth).tolist() if tree.children(node)]
        sees = above = None
        if depth:
            above = torch.tensor([1 + places.get(int(tree.parents[node]), -1) for node in nodes])
            places |= {node: len(places) + index for index, node in enumerate(nodes)}
            sees = torch.tensor(tree.mask[np.ix_(nodes, list(places))])
        children = [(index, int(tree.rank[child]), child) for index, node in enumerate(nodes)
                    for child in tree.children(node)]
        levels.append(Level(depth, tuple(nodes), sees, above, torch.tensor(children)))
    return tuple(levels), places


@dataclass(frozen=True, eq=False)
class Tails:
    """The tails of B rows."""

    width: int
    depth: Tensor  # int64[B, W]
    mask: Tensor  # bool[W, W] or [B, W, W]
    offsets: Tensor  # int64[B], each root's distance from the end of its cache
    visible: Tensor  # bool[B, W], False at padding


@lru_cache(maxsize=1024)
def tails(lengths: tuple[int, ...]) -> Tails:
    """The layout of tails of these numbers of tokens, one per row."""
    width, counts = max(lengths), torch.tensor(lengths)
    slots, padding = torch.arange(width), width - counts[:, None]
    visible = slots >= padding
    itself = torch.eye(width, dtype=torch.bool)
    mask = itself | torch.ones_like(itself).tril() & visible[:, None]
    return Tails(width, (slots - padding).clamp_min(0), _shared(mask), counts - 1, visible)


def block(waiting: Tails, level: Level) -> tuple[Tensor, Tensor]:
    """Positions and mask of the forward pass of a level after such tails: depth int64[B, k] from the end of the cache,
    and the mask over tail, earlier nodes and themselves.
    """
    sees = level.sees.expand(len(waiting.offsets), -1, -1)
    tail = waiting.visible[:, None].expand(-1, sees.shape[1], -1)
    return ((waiting.offsets[:, None] + level.depth).expand(-1, sees.shape[1]),
            _shared(torch.cat([tail, sees], dim=-1)))


planned_block = lru_cache(maxsize=4096)(block)  # of static shapes, whose levels are made once


def _shared(mask: Tensor) -> Tensor:
    """The mask of a single row without its batch dimension, so that backends need not compare rows."""
    return mask[0] if len(mask) == 1 else mask


@lru_cache(maxsize=1024)
def native_levels(shape: Tree, waiting: Tails | None = None) -> Levels:
    """A shape's levels for a native call that fills them all: after such tails; without them for a head, whose cache
    ends before the root's children.
    """
    levels = []
    for level in plan(shape)[0]:
        positions = mask = None
        if level.depth:
            of_head = torch.full((len(level.nodes),), level.depth - 1), level.sees
            positions, mask = planned_block(waiting, level) if waiting else of_head
        levels.append((torch.tensor(level.nodes), level.children, positions, mask))
    return Levels(shape.size, levels)
