"""SpecTr's K-SEQ: k independent samples of one distribution, each accepted by the same, scaled-down ratio."""

import math
from typing import Callable

import torch
from torch import Tensor

from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws
from lib.verify.overlap import Overlap
from lib.verify.siblings import any_of

MOST_READS = 60
HALVINGS = 24  # of an interval, by which the next scale is looked for on a curve: finer than that curve is right
STEEPEST = 64.0  # of the curves: p is q


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """K-SEQ (SpecTr, Sun et al. 2023, Alg. 2) among the k draws of each family of siblings, repeats counted.

    With b(rho) = sum min(p / rho, q), rho in [1, k] solves 1 - (1 - b)^k = rho b. A draw of x is accepted if
    U < p(x) / (rho q(x)); if none is, emit from p - min(p / rho, q) (1 - (1 - b)^k) / b, normalised.
    """
    counts, p_at, q_at = draft.times_drawn(), draft.entries(target_probs), draft.entries(draft.proposals())

    def decide(node: int, children: tuple[int, ...]):
        left = {child: counts[child] for child in children}
        k = sum(left.values())
        overlap = Overlap(target_probs[node], draft.probs[node].to(target_probs))
        rho, shared = scale(overlap, k)
        while left:
            child = any_of(left, draws)
            # What was drawn has q > 0; where it has not, nothing is owed to the draft.
            if q_at(child) > 0 and draws.uniform() < p_at(child) / q_at(child) / rho:
                return child, None
        return None, draws.categorical(rest(overlap, rho, shared, k), otherwise=target_probs[node])

    return descend(draft, target_probs, draws, decide)


def scale(overlap: Overlap, k: int) -> tuple[float, float]:
    """The rho in [1, k] with 1 - (1 - b)^k = rho b, and rho b. rho is rounded up by so much that half of the digits of
    the chance of acceptance are right: any that is not below it is lossless.

    Each rho that is tried reads the vocabulary: from k down, by a curve through one value, then by a line through two.
    """
    close = torch.finfo(overlap.p.dtype).eps ** 0.5
    low, high, at, shared, slope = 1.0, float(k), float(k), overlap.at(k), None
    for read in range(MOST_READS):
        if 0 <= excess(at, shared, k) <= close or at == low == high:
            return at, shared
        low, high = (at, high) if excess(at, shared, k) < 0 else (low, at)
        after = (low + high) / 2 if read % 4 == 3 else _crossing(low, high, k, close, _through(at, shared, slope))
        found = overlap.at(after)
        slope = (found - shared) / (after - at) if after != at else 0.0
        at, shared = after, found
    return high, overlap.at(high)


def rest(overlap: Overlap, rho: float, shared: float, k: int) -> Tensor:
    """float[V], not normalised: what is emitted where none of k draws is accepted; shared: rho b."""
    if shared <= 0:
        return overlap.p
    left = torch.mul(overlap.q, rho, out=overlap.spent()).clamp_max_(overlap.p)
    return torch.sub(overlap.p, left, alpha=accepted_by_any(shared / rho, k) / shared, out=left).clamp_min_(0)


def excess(rho: float, shared: float, k: int) -> float:
    """rho b - (1 - (1 - b)^k) for rho b = shared: what is 0 at the rho that is looked for."""
    return shared - accepted_by_any(shared / rho, k)


def accepted_by_any(b: float, k: int) -> float:
    """The chance 1 - (1 - b)^k that one of k draws is accepted, each with chance b."""
    return 1 - (1 - min(b, 1.0)) ** k


def _through(at: float, shared: float, slope: float | None) -> Callable[[float], float]:
    """rho -> about rho b(rho): the line with this value and slope; without a slope the curve rho (1 + rho^a)^(-1/a),
    which is 0 at 0, begins with slope 1 and ends at 1, as rho b does where p and q have no zeros."""
    if slope is not None:
        return lambda rho: min(1.0, shared + slope * (rho - at))
    low, high = 1 / STEEPEST, STEEPEST
    for _ in range(HALVINGS):
        a = math.sqrt(low * high)
        low, high = (a, high) if at * (1 + at**a) ** (-1 / a) < shared else (low, a)
    return lambda rho: rho * (1 + rho**high) ** (-1 / high)


def _crossing(low: float, high: float, k: int, close: float, curve: Callable[[float], float]) -> float:
    """Where the excess passes half of `close`, if rho b is this curve; by halving."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle, curve(middle), k) > close / 2 else (middle, high)
    return high
