"""Rules that accept a drawn child with a probability, and after a rejection go on with the residual of the target."""

import torch
from torch import Tensor

from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws


class Remaining:
    """What rejections leave at a node: p float[V], of the target, and q float[V], of the drafter's next sibling.

    Both are kept with their masses instead of being normalised, which saves a pass over the vocabulary each time.
    """

    def __init__(self, p: Tensor, q: Tensor):
        self.p, self.p_mass = p, 1.0
        self.q, self.q_mass = q, 1.0
        self.tried: list[int] = []

    def ratio(self, token: int) -> float:
        """p / q, each normalised."""
        return ratio(self.p, self.q, token) / self.p_mass * self.q_mass

    def reject(self, weight: float = 1.0) -> float:
        """p becomes (weight p - q)+, both normalised before; returns the mass of that. What has no mass is left as it was."""
        left = torch.sub(self.p, self.q, alpha=self.p_mass / (weight * self.q_mass)).clamp_min_(0) if weight > 0 else None
        mass = float(left.sum()) if left is not None else 0.0
        if mass <= 0:  # p = q, which is never rejected: only rounding comes here
            return 0.0
        rest = mass * weight / self.p_mass
        self.p, self.p_mass = left, mass
        return rest

    def drop(self, token: int) -> None:
        """q loses a token: the next sibling was drawn without it; uniformly among the untried where no mass is left."""
        self.tried.append(token)
        self.q, self.q_mass = without_mass(self.q, self.tried)


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

    x is accepted if U < p(x) / q(x); else p becomes the normalised (p - q)+, q loses x and is normalised again. Where q has
    no mass left, the drafter drew uniformly from the tokens not yet drawn, and so does the rule. None left: emit from p.
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
    """The distribution q float[V] with these tokens taken out, normalised; uniform over the others where no mass is left."""
    left, mass = without_mass(q, tokens)
    return left / mass if mass > 0 else left


def without_mass(q: Tensor, tokens: list[int]) -> tuple[Tensor, float]:
    """As `without`, not normalised, and its mass."""
    left = q.clone()
    left[tokens] = 0
    mass = float(left.sum())
    if mass <= 0:
        left = torch.ones_like(q)
        left[tokens] = 0
        mass = float(left.sum())
    return left, mass
