"""Rules that accept a drawn child with a probability, and after a rejection go on with the residual of the target."""

import torch
from torch import Tensor

from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws

NEGLIGIBLE = 1e-20  # a chance that no float32 sum would notice, and whose inverse does not overflow


class Remaining:
    """What rejections leave at a node: p float[V], of the target, and q float[V], of the drafter's next sibling.

    Both are kept with their masses instead of being normalised, and changed in place once they are copies: every pass
    over a long vocabulary counts.
    """

    def __init__(self, p: Tensor, q: Tensor):
        self.p, self.p_mass, self._own_p = p, 1.0, False
        self.tried: list[int] = []
        self.draw_from(q)

    def draw_from(self, q: Tensor) -> None:
        """The next sibling was drawn from q, which sums to one."""
        self.q, self.q_mass, self._own_q = q, 1.0, False

    def ratio(self, token: int) -> float:
        """p / q, each normalised."""
        return ratio(self.p, self.q, token) / self.p_mass * self.q_mass

    def reject(self, weight: float = 1.0) -> float:
        """p becomes (weight p - q)+, both normalised before; returns the mass of that."""
        if weight < NEGLIGIBLE:
            return 0.0
        scale = self.p_mass / (weight * self.q_mass)
        self.p = self.p.sub_(self.q, alpha=scale) if self._own_p else torch.sub(self.p, self.q, alpha=scale)
        self._own_p = True
        mass, before = float(self.p.clamp_min_(0).sum()), self.p_mass
        if mass > 0:
            self.p_mass = mass
        else:  # p was q, which is never rejected: only rounding comes here, and any distribution will do
            self.p.copy_(self.q)
            self.p_mass = self.q_mass
        return mass * weight / before

    def drop(self, token: int) -> None:
        """q loses a token: the next sibling was drawn without it; uniformly among the untried where no mass is left."""
        self.tried.append(token)
        if self._own_q:
            self.q[token] = 0
        else:
            self.q, self._own_q = without_mass(self.q, self.tried), True
        self.q_mass = float(self.q.sum())
        if self.q_mass < NEGLIGIBLE:
            self.q, self.q_mass = without(self.q, self.tried), 1.0


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2024, Alg. 2), for children drawn independently from q.

    The drawn children, repeats counted, are tried in random order: x is accepted if U < p(x) / q(x), else p becomes the
    normalised (p - q)+ and one draw of x is used up. None left: emit from p.
    """
    counts = draft.times_drawn()

    def decide(node: int, tokens: dict[int, int]):
        rest = Remaining(target_probs[node], draft.proposal_at(node, target_probs))
        left = {child: counts[child] for child in tokens}
        while left:
            child = any_of(left, draws)
            if draws.uniform() < rest.ratio(tokens[child]):
                return child, None
            rest.reject()
        return None, rest.p

    return descend(draft, target_probs, draws, decide)


def without_replacement(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Sequoia's rule (Chen et al. 2024, Alg. 2), for children drawn from q without replacement, tried in draw order.

    x is accepted if U < p(x) / q(x); else p becomes the normalised (p - q)+, q loses x and is normalised again. Where
    q has no mass left, the drafter drew uniformly from the tokens not yet drawn, and so does the rule. None left:
    emit from p.
    """

    def decide(node: int, tokens: dict[int, int]):
        rest = Remaining(target_probs[node], draft.proposal_at(node, target_probs))
        last = next(reversed(tokens))
        for child, token in tokens.items():
            if draws.uniform() < rest.ratio(token):
                return child, None
            rest.reject()
            if child != last:
                rest.drop(token)
        return None, rest.p

    return descend(draft, target_probs, draws, decide)


def ratio(p: Tensor, q: Tensor, token: int) -> float:
    """p / q at a token. One that was drawn has q > 0; where it has not, nothing is owed to the draft: 0."""
    drawn = float(q[token])
    return float(p[token]) / drawn if drawn > 0 else 0.0


def any_of(left: dict[int, int], draws: Draws) -> int:
    """Use up one of the draws that are left (child -> times), each as likely, and return its child."""
    children = list(left)
    weights = torch.tensor([float(left[child]) for child in children], dtype=torch.float64)
    child = children[draws.categorical(weights)] if len(children) > 1 else children[0]
    left[child] -= 1
    if not left[child]:
        del left[child]
    return child


def without(q: Tensor, tokens: list[int]) -> Tensor:
    """The distribution q float[V] with these tokens taken out, normalised; uniform over the others where no mass is
    left."""
    left = without_mass(q, tokens)
    mass = float(left.sum())
    if mass <= 0:
        left = without_mass(torch.ones_like(q), tokens)
        mass = float(left.sum())
    return left / mass if mass > 0 else left


def without_mass(q: Tensor, tokens: list[int]) -> Tensor:
    """A copy of q float[V] in which these tokens have none."""
    left = q.clone()
    left[tokens] = 0
    return left
