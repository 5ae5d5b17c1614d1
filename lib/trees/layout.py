"""Where a tree's nodes stand on paper: levels by depth, siblings in order, subtrees as close as they can be."""

import numpy as np

from lib.trees.tree import Tree


def positions(tree: Tree) -> np.ndarray:
    """float[m]: each node's place across its level, the leftmost node at 0.

    Nodes of one level are at least 1 apart, siblings stand by rank, a parent stands midway between its first and last
    child (Reingold and Tilford 1981, with whole contours in place of threads).
    """
    shift = np.zeros(tree.size)  # of a node against its parent
    left, right = {}, {}  # outline of a subtree by level below its root, against that root
    for node in reversed(range(tree.size)):
        left[node], right[node] = [0.0], [0.0]
        children = tree.children(node)
        if children:
            places, outline = _side_by_side(children, left, right)
            middle = (places[0] + places[-1]) / 2
            for child, place in zip(children, places):
                shift[child] = place - middle
            left[node] += [edge - middle for edge in outline[0]]
            right[node] += [edge - middle for edge in outline[1]]
    across = np.zeros(tree.size)
    for node in range(1, tree.size):
        across[node] = across[tree.parents[node]] + shift[node]
    return across - across.min()


def _side_by_side(children, left, right):
    """Places of sibling subtrees, each as far left as the ones before it allow, and the outline of them all."""
    places, outline = [], ([], [])
    for child in children:
        own_left, own_right = left.pop(child), right.pop(child)
        common = min(len(own_left), len(outline[1]))
        place = max((outline[1][level] - own_left[level] + 1 for level in range(common)), default=0.0)
        places.append(place)
        outline = (outline[0] + [edge + place for edge in own_left[len(outline[0]):]],
                   [edge + place for edge in own_right] + outline[1][len(own_right):])
    return places, outline
