"""Going down a draft from its root, one decision among siblings at a time."""

from typing import Callable

from torch import Tensor

from lib.tree import ROOT
from lib.verify.draft import Draft, Draws

# (node, its children's tokens by child) -> (the child accepted or None, what the bonus token is then drawn from)
Decide = Callable[[int, dict[int, int]], tuple[int | None, Tensor | None]]


def descend(draft: Draft, target_probs: Tensor, draws: Draws, decide: Decide) -> tuple[list[int], int]:
    """The path that `decide` takes from the root, and the bonus token where it takes none of the children.

    A node without children ends the path with a token of the target's own distribution there.
    """
    tokens, node, accepted = draft.tokens.tolist(), ROOT, []
    while children := draft.tree.children(node):
        child, rest = decide(node, {child: tokens[child] for child in children})
        if child is None:
            return accepted, draws.categorical(rest)
        accepted.append(child)
        node = child
    return accepted, draws.categorical(target_probs[node])
