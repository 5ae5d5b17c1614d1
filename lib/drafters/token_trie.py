"""Several token sequences behind one root as one tree: common prefixes are one path."""

from functools import lru_cache
from typing import Iterable, Sequence

import torch

from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft


def merge(root: int, sequences: Iterable[Sequence[int]], budget: int | None = None) -> Draft:
    """The trie of the sequences, in their order, up to `budget` nodes; siblings are ranked in the order they came.

    No more sequences are asked for than the budget takes.
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
    """One object a shape, so that what was made of it is found again without a comparison."""
    return Tree(parents)
