"""What the decoding loop asks of a drafter."""

from typing import Protocol, Sequence

from torch import Tensor

from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class Drafter(Protocol):
    """Proposes a tree of tokens for every row of a batch, and is told what became of it.

    `calls` counts its model's forwards since it was made; `cache_bytes` is what it holds beside weights. A drafter with
    `wants_hidden_states` true reads the target's: `target_outputs.hidden_states` has [B, m, H] a layer for the nodes of
    its drafts, and in the first `commit` after `start` for the tokens of the prompts, right-padded.
    """

    calls: int
    cache_bytes: int

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch of prompts int64[T], forgetting the last; the first `commit` brings each row's first root."""

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """One draft a row, its root the row's last committed token: a static shape, or a tree grown by a rule."""

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """What the target kept: each row's accepted nodes, root excluded, and its bonus token, the new root.

        target_outputs: what the target's forward of the drafts gave (of the prompts, in the first call after `start`).
        """

    def select(self, rows: list[int]) -> None:
        """Keeps these rows of the batch, in this order; the others have ended."""


def static(shape: Tree | Growth) -> Tree:
    """The shape, for a drafter that has no probabilities to grow a tree by. ValueError for a growth rule."""
    if not isinstance(shape, Tree):
        raise ValueError(f"{shape.name!r} grows from probabilities, which this drafter has none of; give a static "
                         "shape, such as 'kary:2@16'")
    return shape
