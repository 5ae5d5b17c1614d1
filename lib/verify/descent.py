"""Going down a draft from its root, one decision among siblings at a time."""

from typing import Callable

from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import Draft, Draws

# (node, its children) -> (the child accepted, None), or (None, the bonus token) where it is none of them
Decide = Callable[[int, tuple[int, ...]], tuple[int | None, int | None]]


def descend(draft: Draft, target_probs: Tensor, draws: Draws, decide: Decide) -> tuple[list[int], int]:
    """The path that `decide` takes from the root, and the bonus token that it gives where it takes no child.

    A node without children ends the path with a token of the target's own distribution there.
    """
    node, accepted = ROOT, []
    while children := draft.tree.children(node):
        child, bonus = decide(node, children)
        if child is None:
            return accepted, bonus
        accepted.append(child)
        node = child
    return accepted, draws.categorical(target_probs[node])
