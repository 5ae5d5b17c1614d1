"""SpecTr's K-SEQ: k independent samples of one distribution, each accepted by the same, scaled-down ratio."""

import torch
from torch import Tensor

from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws, entries
from lib.verify.siblings import any_of

CLOSE = 1e-4  # to the best chance of acceptance
MOST_READS = 40
HALVINGS = 24  # of an interval of length k: finer than CLOSE


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """K-SEQ (SpecTr, Sun et al. 2023) among the k draws of each family of siblings, repeats counted.

    With b(rho) = sum min(p / rho, q), rho in [1, k] solves 1 - (1 - b)^k = rho b. A draw of x is accepted if
    U < p(x) / (rho q(x)); if none is, emit from p - min(p / rho, q) (1 - (1 - b)^k) / b, normalised.
    """
    counts = draft.times_drawn()

    def decide(node: int, tokens: dict[int, int]):
        left = {child: counts[child] for child in tokens}
        k = sum(left.values())
        p, q = target_probs[node], draft.proposal_at(node, target_probs)
        at = dict(zip(tokens, zip(entries(p, tokens.values()), entries(q, tokens.values()))))
        rho, shared = scale(p, q, k)
        while left:
            child = any_of(left, draws)
            p_x, q_x = at[child]
            # What was drawn has q > 0; where it has not, nothing is owed to the draft.
            if q_x > 0 and draws.uniform() < p_x / q_x / rho:
                return child, None
        return None, rest(p, q, rho, shared, k)

    return descend(draft, target_probs, draws, decide)


def scale(p: Tensor, q: Tensor, k: int) -> tuple[float, float]:
    """The rho in [1, k] with 1 - (1 - b)^k = rho b, and rho b. rho is rounded up by so much that CLOSE of the chance of
    acceptance is lost at most: any that is not below it is lossless.

    Each rho that is tried reads the vocabulary once. What is read, rho b(rho) = sum min(p, rho q), is a smooth
    function: a line through the last two values says where to try next.
    """
    low, high, at = 1.0, float(k), 1.0
    shared = scaled_overlap(p, q, at)
    if k == 1 or excess(at, shared, k) >= -torch.finfo(p.dtype).eps:
        return at, shared
    slope = 0.0
    for read in range(MOST_READS):
        after = (low + high) / 2 if read % 4 == 3 else _crossing(low, high, k, at, shared, slope)
        found = scaled_overlap(p, q, after)
        slope = (found - shared) / (after - at) if after != at else 0.0
        at, shared = after, found
        if 0 <= excess(at, shared, k) <= CLOSE:
            return at, shared
        low, high = (at, high) if excess(at, shared, k) < 0 else (low, at)
    return high, scaled_overlap(p, q, high)


def _crossing(low: float, high: float, k: int, at: float, shared: float, slope: float) -> float:
    """Where the excess passes half of CLOSE, if the scaled overlap is a line with this value and slope; by halving."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = excess(middle, min(1.0, shared + slope * (middle - at)), k) > CLOSE / 2
        low, high = (low, middle) if above else (middle, high)
    return high


def excess(rho: float, shared: float, k: int) -> float:
    """rho b - (1 - (1 - b)^k) for rho b = shared: what is 0 at the rho that is looked for."""
    return shared - accepted_by_any(shared / rho, k)


def scaled_overlap(p: Tensor, q: Tensor, rho: float) -> float:
    """rho b(rho) = sum min(p, rho q): rho times the chance that one draw is accepted."""
    return float(torch.mul(q, rho).clamp_max_(p).sum())


def accepted_by_any(b: float, k: int) -> float:
    """The chance 1 - (1 - b)^k that one of k draws is accepted, each with chance b."""
    return 1 - (1 - min(b, 1.0)) ** k


def rest(p: Tensor, q: Tensor, rho: float, shared: float, k: int) -> Tensor:
    """float[V], not normalised: what is emitted where no draw is accepted; shared: rho b."""
    if shared <= 0:
        return p
    left = torch.mul(q, rho).clamp_max_(p)
    left = torch.sub(p, left, alpha=accepted_by_any(shared / rho, k) / shared, out=left).clamp_min_(0)
    return left if left.sum() > 0 else p
