"""How the children of a node come from a distribution: the most likely ones, or samples with or without replacement."""

from torch import Tensor

from lib.verify.draft import Draws
from lib.verify.residual import without
from lib.verify.warping import best_token


def top_tokens(scores: Tensor, count: int) -> Tensor:
    """The best tokens of each row of scores [S, V], int64[S, count]; of equals the one with the lower index first."""
    vocabulary = scores.shape[-1]
    if count > vocabulary:
        raise ValueError(f"the tree has a child of rank {count - 1}, the drafter knows {vocabulary} tokens; "
                         f"give a node at most {vocabulary} children")
    if count == 1:
        return best_token(scores)[:, None]
    found = scores.topk(min(count + 1, vocabulary), dim=-1)
    # topk promises no order among equals, so that rows with a tie are sorted in full.
    tied = (found.values[:, 1:] == found.values[:, :-1]).any(-1)
    best = found.indices[:, :count]
    if tied.any():
        best[tied] = scores[tied].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return best


def independent(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` independent samples of probs float[V]: each distinct token as (place of its first draw, token, count)."""
    drawn = [draws.categorical(probs) for _ in range(count)]
    return [(drawn.index(token), token, drawn.count(token)) for token in dict.fromkeys(drawn)]


def distinct(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` samples of probs float[V] without replacement, as (place, token, 1) in draw order, at most V of them.

    Where no mass is left the rest is drawn uniformly from the tokens not yet drawn, as Sequoia's rule supposes.
    """
    tokens: list[int] = []
    left = probs
    for _ in range(min(count, probs.shape[-1])):
        tokens.append(draws.categorical(left))
        left = without(left, tokens)
    return [(place, token, 1) for place, token in enumerate(tokens)]


SAMPLERS = {"iid": independent, "without_replacement": distinct}
