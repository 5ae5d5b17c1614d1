"""What a round's forwards of a language-model drafter look like: positions and masks, made once for each kind of round.

A row's tail is the committed tokens that its cache lacks, the root last. Tails are right-aligned, so that every root
has the same slot.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lib.drafters.fill_plan import Level


@dataclass(frozen=True, eq=False)
class Layout:
    """Tails of B rows: their width W, depth int64[B, W], mask bool[W, W] or [B, W, W]; `offsets` int64[B], each root's
    distance from its cache's end; `visible` bool[B, W], what is no padding.
    """

    width: int
    depth: Tensor
    mask: Tensor
    offsets: Tensor
    visible: Tensor


@lru_cache(maxsize=1024)
def layout(lengths: tuple[int, ...]) -> Layout:
    """The layout of tails of so many tokens a row."""
    width, held = max(lengths), torch.tensor(lengths)
    place, padding = torch.arange(width), width - held[:, None]
    visible = place >= padding
    itself = torch.eye(width, dtype=torch.bool)
    mask = itself | torch.ones_like(itself).tril() & visible[:, None]
    return Layout(width, (place - padding).clamp_min(0), shared(mask), held - 1, visible)


@lru_cache(maxsize=4096)
def above(waiting: Layout, planned: Level) -> tuple[Tensor, Tensor]:
    """Depth and mask of a static shape's level behind such tails, as `level` makes them."""
    return level(waiting, planned.depth, planned.sees.expand(len(waiting.offsets), -1, -1))


def level(waiting: Layout, depth: int, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Of k nodes of one depth: depth int64[B, k] from the cache's end, and a mask over tail, earlier nodes and
    themselves, of which the last two are `sees` bool[B, k, forwarded + k].
    """
    nodes = sees.shape[1]
    tail = waiting.visible[:, None].expand(-1, nodes, -1)
    return (waiting.offsets[:, None] + depth).expand(-1, nodes), shared(torch.cat([tail, sees], dim=-1))


def shared(mask: Tensor) -> Tensor:
    """The mask of one row without its batch dimension, which spares backends a question."""
    return mask[0] if len(mask) == 1 else mask
