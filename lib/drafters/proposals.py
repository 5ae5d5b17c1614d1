"""How the children of a node come from a distribution: the most likely ones, or samples with or without replacement."""

import torch
from torch import Tensor

from lib.verify.draft import Draws
from lib.verify.residual import without


def top_tokens(scores: Tensor, count: int) -> Tensor:
    """The best tokens of each row of scores [S, V], int64[S, count]; of equals the one with the lower index first."""
    found = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    # topk promises no order among equals, so that rows with a tie are sorted in full.
    tied = (found.values[:, 1:] == found.values[:, :-1]).any(-1)
    best = found.indices[:, :count]
    if tied.any():
        best[tied] = scores[tied].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return best


def independent(probs: Tensor, count: int, draws: Draws) -> tuple[list[int], list[int]]:
    """`count` independent samples of probs float[V]: the distinct tokens in the order first drawn, and how often each came."""
    drawn = [draws.categorical(probs) for _ in range(count)]
    tokens = list(dict.fromkeys(drawn))
    return tokens, [drawn.count(token) for token in tokens]


def distinct(probs: Tensor, count: int, draws: Draws) -> list[int]:
    """`count` samples of probs float[V] without replacement, in draw order; uniform over the rest where no mass is left."""
    tokens: list[int] = []
    left = probs
    for _ in range(min(count, probs.shape[-1])):
        tokens.append(draws.categorical(left))
        left = without(left, tokens)
    return tokens
