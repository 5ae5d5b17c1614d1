"""Medusa's `medusa_choices`: a Python list of paths of ranks (FasterDecoding/Medusa, medusa_choices.py)."""

from lib.cost.engines.forms import favourites, within
from lib.trees.tree import Tree

MOST_RANK = 10  # TOPK of its utils.py; a depth is one head, of which released models have five


def write(tree: Tree) -> str:
    """The line of Python that sets the tree. ValueError for ranks that Medusa does not look at."""
    return f"medusa_choices = {within(tree, MOST_RANK).choices()}"


def read(text: str) -> Tree:
    """The tree of such a line, or of its list alone."""
    return favourites(text.partition("=")[2] or text, MOST_RANK)
