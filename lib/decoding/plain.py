"""Plain decoding in the same loop: a tree that is a root alone."""

from typing import Sequence

import torch
from torch import Tensor

from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.trees.tree import Tree
from lib.verify.draft import Draft

ROOT_ALONE = Tree([-1])


class NoDrafter:
    """Drafts nothing: speculation without speculation, which is plain decoding."""

    calls = 0
    cache_bytes = 0

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Takes prompts int64[T] and forgets them."""

    def propose(self, shape: Tree, draws) -> list[Draft]:
        """The roots alone."""
        return [Draft(ROOT_ALONE, torch.tensor([root]), "top_k", None) for root in self.roots]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """The bonus tokens become the roots."""
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.roots = [self.roots[row] for row in rows]


def continuations(
    target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    rows: int = 32,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """The target's own continuations of prompts int64[T], in batches of so many rows."""
    written: list[list[int]] = []
    for padded, mask in in_batches(prompts, rows):
        done = generate(
            target,
            NoDrafter(),
            padded,
            attention_mask=mask,
            shape=ROOT_ALONE,
            rule="naive" if temperature else "greedy",
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            generator=generator,
        )
        written += done.new_tokens
    return written
