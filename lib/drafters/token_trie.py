"""Several token sequences behind one root as one tree: common prefixes are one path."""

from typing import Iterable, Sequence

import torch

from lib.tree import Tree
from lib.verify import Draft


def merge(root: int, sequences: Iterable[Sequence[int]], budget: int | None = None) -> Draft:
    """The trie of the sequences, in their order, up to `budget` nodes; siblings are ranked in the order they came."""
    parents, tokens, child = [-1], [root], {}
    for node, token in _steps(sequences, child):
        if budget is not None and len(parents) > budget:
            break
        child[node, token] = len(parents)
        parents.append(node)
        tokens.append(token)
    return Draft(Tree(parents), torch.tensor(tokens), "top_k")


def _steps(sequences: Iterable[Sequence[int]], child: dict[tuple[int, int], int]):
    """What the trie lacks, as (node, token): the caller enters each in `child` before it asks for the next."""
    for sequence in sequences:
        node = 0
        for token in sequence:
            if (node, token) not in child:
                yield node, token
            node = child[node, token]
