"""EAGLE: the first version's `tree_choices` (a list of lists of ranks), and the dynamic tree of EAGLE-2 and -3
(`EaModel.from_pretrained(total_token=, depth=, top_k=)`; SafeAILab/EAGLE).
"""

from lib.cost.engines.forms import Dynamic, favourites, keywords, whole, within
from lib.trees.tree import Tree

MOST_RANK = 10  # its TOPK


def write(tree: Tree) -> str:
    """EAGLE-1's line of Python. ValueError for ranks that it does not look at."""
    return f"tree_choices = {[list(choice) for choice in within(tree, MOST_RANK).choices()]}"


def read(text: str) -> Tree:
    """The tree of such a line, or of its list alone."""
    return favourites(text.partition("=")[2] or text, MOST_RANK)


def write_dynamic(tree: Dynamic) -> str:
    """EAGLE-2's and -3's keywords: `total_token` counts the root, `depth` the levels after the first."""
    return f"EaModel.from_pretrained(total_token={tree.nodes + 1}, depth={tree.steps - 1}, top_k={tree.top_k})"


def read_dynamic(text: str) -> Dynamic:
    """The dynamic tree of such a call; other keywords are passed over. ValueError where one is missing."""
    tokens, depth, top_k = whole(keywords(text), ["total_token", "depth", "top_k"], text)
    return Dynamic(depth + 1, top_k, tokens - 1)
