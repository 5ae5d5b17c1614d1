"""Static trees that a language model fills in one native call: their levels behind a round's tails, made once."""

from functools import lru_cache
from typing import Sequence

import torch
from torch import Tensor

from lib.drafters import tails
from lib.drafters.slots import plan
from lib.native.blocks import Levels
from lib.tree import ROOT, Tree


@lru_cache(maxsize=1024)
def levels(shape: Tree, waiting: tails.Layout) -> Levels:
    """A shape's levels, its root's first, behind tails of this layout."""
    below = [(level, *tails.above(waiting, level)) for level in plan(shape).levels]
    return Levels(shape.size, [
        (torch.tensor([ROOT]), _children(shape, [ROOT]), None, None),
        *((torch.tensor(level.nodes), _children(shape, level.nodes), depth, mask) for level, depth, mask in below),
    ])


def _children(shape: Tree, nodes: Sequence[int]) -> Tensor:
    """int64[c, 3]: of each child of these nodes its parent's place among them, its rank, itself; siblings by rank."""
    return torch.tensor(sorted((place, int(shape.rank[child]), child)
                               for place, node in enumerate(nodes) for child in shape.children(node)))
