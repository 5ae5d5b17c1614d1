"""SpecTr's K-SEQ: k independent samples of one distribution, each accepted by the same, scaled-down ratio."""

import torch
from torch import Tensor

from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws
from lib.verify.residual import any_of, ratio

CLOSE = 1e-8  # to the best chance of acceptance
MOST_STEPS = 60


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """K-SEQ (SpecTr, Sun et al. 2023) among the k draws of each family of siblings, repeats counted.

    With b(rho) = sum min(p / rho, q), rho in [1, k] solves 1 - (1 - b)^k = rho b. A draw of x is accepted if
    U < p(x) / (rho q(x)); if none is, emit from p - min(p / rho, q) (1 - (1 - b)^k) / b, normalised.
    """
    counts = draft.times_drawn()

    def decide(node: int, tokens: dict[int, int]):
        p, q = target_probs[node], draft.proposal_at(node, target_probs)
        left = {child: counts[child] for child in tokens}
        k = sum(left.values())
        rho = scale(p, q, k)
        while left:
            child = any_of(left, draws)
            if draws.uniform() < ratio(p, q, tokens[child]) / rho:
                return child, None
        return None, rest(p, q, rho, k)

    return descend(draft, target_probs, draws, decide)


def scale(p: Tensor, q: Tensor, k: int) -> float:
    """The rho in [1, k] with 1 - (1 - b)^k = rho b, rounded up: any that is not below it is lossless, only accepts
    less."""

    def excess(rho: float) -> float:
        b = overlap(p, q, rho)
        return rho * b - accepted_by_any(b, k)

    low, high, below = 1.0, float(k), excess(1.0)
    if k == 1 or below >= -torch.finfo(p.dtype).eps:
        return low
    above = excess(high)
    for step in range(MOST_STEPS):
        if above <= CLOSE:
            break
        # False position is fast, halving is certain.
        rho = (low + high) / 2 if step % 3 == 2 else (low * above - high * below) / (above - below)
        found = excess(rho)
        if found >= 0:
            high, above = rho, found
        else:
            low, below = rho, found
    return high


def overlap(p: Tensor, q: Tensor, rho: float) -> float:
    """b(rho) = sum min(p / rho, q): the chance that one draw is accepted."""
    return float(torch.minimum(p / rho, q).sum())


def accepted_by_any(b: float, k: int) -> float:
    """The chance 1 - (1 - b)^k that one of k draws is accepted, each with chance b."""
    return 1 - (1 - min(b, 1.0)) ** k


def rest(p: Tensor, q: Tensor, rho: float, k: int) -> Tensor:
    """float[V], not normalised: what is emitted where no draw is accepted."""
    shared = torch.minimum(p / rho, q)
    b = float(shared.sum())
    left = (p - shared * (accepted_by_any(b, k) / b)).clamp_min_(0) if b > 0 else p
    return left if left.sum() > 0 else p
