"""Drafts of many rows as one batch; tensors that depend on a tree alone are made once per tree."""

from functools import lru_cache
from typing import Iterator, Sequence

import torch
from torch import Tensor

from lib.trees.tree import Tree
from lib.verify.draft import Draft


@lru_cache(maxsize=512)
def geometry(tree: Tree, device: torch.device) -> tuple[Tensor, Tensor]:
    """A tree's depth int64[m] and mask bool[m, m] on a device."""
    return torch.tensor(tree.depth, device=device), torch.tensor(tree.mask, device=device)


def stack(drafts: list[Draft], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' trees as one batch: tokens int64[B, m], depth int64[B, m], mask bool[B, m, m]; padding attends to
    itself alone.

    Where all rows have the same tree, depth is [m] and the mask [m, m].
    """
    trees = [draft.tree for draft in drafts]
    if len(drafts) == 1:
        return drafts[0].tokens.to(device)[None], *geometry(trees[0], device)
    if all(tree is trees[0] or tree == trees[0] for tree in trees[1:]):
        return torch.stack([draft.tokens for draft in drafts]).to(device), *geometry(trees[0], device)
    size = max(tree.size for tree in trees)
    tokens, depth = torch.zeros(2, len(trees), size, dtype=torch.long)
    mask = torch.eye(size, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, draft in enumerate(drafts):
        m = draft.tree.size
        tokens[row, :m] = draft.tokens
        depth[row, :m], mask[row, :m, :m] = geometry(draft.tree, torch.device("cpu"))
    return tokens.to(device), depth.to(device), mask.to(device)


def in_batches(prompts: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts int64[T] right-padded in batches of `rows` rows: tokens int64[B, T] and their mask bool[B, T]."""
    for first in range(0, len(prompts), rows):
        batch = list(prompts[first : first + rows])
        padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        yield padded, torch.arange(padded.shape[1])[None] < torch.tensor([len(prompt) for prompt in batch])[:, None]
