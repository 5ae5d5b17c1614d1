"""Rules that need no distribution of the drafter: what the target says next is a child, or it is not."""

from typing import Callable

from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import Draft, Draws
from lib.verify.warping import best_token


def greedy(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Descend while a child is the target's most likely token (the first of equals), which is also the bonus token.

    Only the order of target_probs float[m, V] matters: logits do as well.
    """
    return _follow(draft, lambda node: int(best_token(target_probs[node])))


def naive(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Sample the target's next token; descend if it is a child, else emit it (SpecInfer, Miao et al. 2024, section
    4.3).

    Lossless for children chosen in any way without looking at the target, and for deterministic children the best
    there is.
    """
    return _follow(draft, lambda node: draws.categorical(target_probs[node]))


def _follow(draft: Draft, say: Callable[[int], int]) -> tuple[list[int], int]:
    tokens, node, accepted = draft.tokens.tolist(), ROOT, []
    while True:
        said = say(node)
        node = next((child for child in draft.tree.children(node) if tokens[child] == said), None)
        if node is None:
            return accepted, said
        accepted.append(node)
