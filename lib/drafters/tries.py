"""Drafts from token sequences: several sequences as one trie, and a shape of which only some nodes have a token."""

from functools import lru_cache
from typing import Iterable, Sequence

import torch

from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft

UNKNOWN = -1


def merge(root: int, sequences: Iterable[Sequence[int]], budget: int | None = None) -> Draft:
    """The trie of sequences after one root, up to `budget` nodes; siblings are ranked in the order they came.

    No more sequences are read than the budget takes.
    """
    parents, tokens = _trie(root, sequences, budget)
    return Draft(_tree(tuple(parents)), torch.tensor(tokens), "top_k")


def _trie(root: int, sequences: Iterable[Sequence[int]], budget: int | None) -> tuple[list[int], list[int]]:
    """Parents and tokens of the trie's nodes."""
    parents, tokens, child = [NO_PARENT], [root], {}
    if budget == 0:
        return parents, tokens
    for sequence in sequences:
        node = ROOT
        for token in sequence:
            step = node, token
            if (node := child.get(step)) is None:
                node = child[step] = len(parents)
                parents.append(step[0])
                tokens.append(token)
                if node == budget:
                    return parents, tokens
    return parents, tokens


@lru_cache(maxsize=4096)
def _tree(parents: tuple[int, ...]) -> Tree:
    """One object per shape, so that other caches find it without comparing trees."""
    return Tree(parents)


def partial_draft(shape: Tree, tokens: Sequence[int]) -> Draft:
    """The nodes of a shape that have a token: `tokens`, the root's first, hold UNKNOWN at the others and below them."""
    kept = [node for node, token in enumerate(tokens) if token != UNKNOWN]
    if len(kept) == len(tokens):
        return Draft(shape, torch.tensor(tokens), "top_k")
    return Draft(_part(shape, tuple(kept)), torch.tensor([tokens[node] for node in kept]), "top_k")


@lru_cache(maxsize=4096)
def _part(shape: Tree, kept: tuple[int, ...]) -> Tree:
    """One object per part of a shape, as `_tree` makes them."""
    place = {node: index for index, node in enumerate(kept)}
    return Tree([-1] + [place[int(shape.parents[node])] for node in kept[1:]], shape.rank[list(kept)])
