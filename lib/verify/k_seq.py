"""SpecTr's K-SEQ: k independent samples of one distribution, each accepted by the same, scaled-down ratio."""

from functools import cached_property

import torch
from torch import Tensor

from lib.verify.draft import Draft, Draws, descend
from lib.verify.draws import Masses
from lib.verify.residual_rules import take_any

MOST_READS = 60


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """K-SEQ (SpecTr, Sun et al. 2023) among the k draws of each family of siblings, repeats included.

    With b(rho) = sum min(p / rho, q), rho in [1, k] solves 1 - (1 - b)^k = rho b. A draw of x is accepted if
    U < p(x) / (rho q(x)); if none is, the bonus token is drawn from p - min(p / rho, q) (1 - (1 - b)^k) / b,
    normalised.
    """
    counts, p_at, q_at = draft.times_drawn(), draft.entries(target_probs), draft.entries(draft.proposal_probs())

    def decide(node: int, children: tuple[int, ...]):
        left = {child: counts[child] for child in children}
        k = sum(left.values())
        p, q = target_probs[node], draft.probs[node].to(target_probs)
        rho, shared = scale(Overlap(p, q), k)
        while left:
            child = take_any(left, draws)
            # A drawn token has q > 0; if rounding made it 0, the draw is rejected.
            if q_at(child) > 0 and draws.uniform() < p_at(child) / q_at(child) / rho:
                return child, None
        return None, draws.categorical(rest(p, q, rho, shared, k), otherwise=p)

    return descend(draft, target_probs, draws, decide)


class Overlap:
    """sum min(p, rho q) of p, q float[V], for several rho."""

    def __init__(self, p: Tensor, q: Tensor):
        self.p, self.q = p, q

    @cached_property
    def p_mass(self) -> float:
        """The sum of p."""
        return Masses(self.p).mass

    def at(self, rho: float) -> float:
        """The sum for one rho, at most 1: the mass of p without that of (p - rho q)+."""
        return min(1.0, max(0.0, self.p_mass - Masses(self.p, self.q, rho).mass))


def scale(overlap: Overlap, k: int) -> tuple[float, float]:
    """The rho in [1, k] with 1 - (1 - b)^k = rho b, and rho b. Any rho that is not below the solution is lossless, and
    this one is rounded up until half of the digits of the chance of acceptance are right.

    Each tried rho costs one read of the vocabulary: first k, then the solution for a constant b, then secants.
    """
    close = torch.finfo(overlap.p.dtype).eps ** 0.5
    low, high, at, shared = 1.0, float(k), float(k), overlap.at(k)
    over, slope = excess(at, shared, k), 0.0
    for read in range(MOST_READS):
        if 0 <= over <= close or at == low == high:
            return at, shared
        low, high = (at, high) if over < 0 else (low, at)
        if read == 0:
            after = at * accepted_by_any(shared / at, k) / shared  # the solution if b were constant
        else:
            after = (low + high) / 2 if read % 4 == 3 or slope == 0 else at - (over - close / 2) / slope
        after = min(max(after, low), high)
        shared = overlap.at(after)
        before, over = over, excess(after, shared, k)
        slope = (over - before) / (after - at) if after != at else 0.0
        at = after
    return high, overlap.at(high)


def rest(p: Tensor, q: Tensor, rho: float, shared: float, k: int) -> Masses:
    """The distribution of the bonus token if none of k draws is accepted, not normalised; shared: rho b.

    With a = (1 - (1 - b)^k) / b, which is at most rho, p - min(p / rho, q) a = max(p - a q, (1 - a / rho) p).
    """
    a = rho * accepted_by_any(shared / rho, k) / shared if shared > 0 else 0.0
    return Masses(p, q, a, max(0.0, 1 - a / rho))


def excess(rho: float, shared: float, k: int) -> float:
    """rho b - (1 - (1 - b)^k) for rho b = shared: 0 at the solution, above 0 for a larger rho."""
    return shared - accepted_by_any(shared / rho, k)


def accepted_by_any(b: float, k: int) -> float:
    """The chance 1 - (1 - b)^k that one of k draws is accepted, each with chance b."""
    return 1 - (1 - min(b, 1.0)) ** k
