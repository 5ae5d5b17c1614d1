"""A shape of which some nodes found no token: what is left of it as a draft."""

from functools import lru_cache
from typing import Sequence

import torch

from lib.trees.tree import Tree
from lib.verify.draft import Draft

UNKNOWN = -1


def part_filled(shape: Tree, tokens: Sequence[int]) -> Draft:
    """The nodes of a shape that have a token: the root's first in `tokens`, UNKNOWN where there is none and below."""
    kept = [node for node, token in enumerate(tokens) if token != UNKNOWN]
    if len(kept) == len(tokens):
        return Draft(shape, torch.tensor(tokens), "top_k")
    return Draft(_part(shape, tuple(kept)), torch.tensor([tokens[node] for node in kept]), "top_k")


@lru_cache(maxsize=4096)
def _part(shape: Tree, kept: tuple[int, ...]) -> Tree:
    """One object a part, so that what was made of it is found again without a comparison."""
    place = {node: index for index, node in enumerate(kept)}
    return Tree([-1] + [place[int(shape.parents[node])] for node in kept[1:]], shape.rank[list(kept)])
