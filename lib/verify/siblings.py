"""Rules that accept a drawn child with a probability, and after a rejection go on with the residual of the target."""

from torch import Tensor

from lib.verify.descent import descend
from lib.verify.draft import Draft, Draws
from lib.verify.residual import Distinct, Independent, at_nodes


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2024, Alg. 2), for children drawn independently from q.

    The drawn children, repeats counted, are tried in random order: x is accepted if U < p(x) / q(x), else p becomes the
    normalised (p - q)+ and one draw of x is used up. None left: emit from p.
    """
    counts, rest_at = draft.times_drawn(), at_nodes(draft, target_probs, Independent)

    def decide(node: int, children: tuple[int, ...]):
        rest, left = rest_at(node), {child: counts[child] for child in children}
        while left:
            child = any_of(left, draws)
            if draws.uniform() < rest.ratio(child):
                return child, None
            rest.reject(child)
        return None, rest.draw(draws)

    return descend(draft, target_probs, draws, decide)


def without_replacement(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Sequoia's rule (Chen et al. 2024, Alg. 2), for children drawn from q without replacement, tried in draw order.

    x is accepted if U < p(x) / q(x); else p becomes the normalised (p - q)+, q loses x and is normalised again. Where
    q has no mass left, the drafter drew uniformly from the tokens not yet drawn, and so does the rule. None left:
    emit from p.
    """
    rest_at = at_nodes(draft, target_probs, Distinct)

    def decide(node: int, children: tuple[int, ...]):
        rest = rest_at(node)
        for child in children:
            if draws.uniform() < rest.ratio(child):
                return child, None
            rest.reject(child)
        return None, rest.draw(draws)

    return descend(draft, target_probs, draws, decide)


def any_of(left: dict[int, int], draws: Draws) -> int:
    """Use up one of the draws that are left (child -> times), each as likely, and return its child."""
    number, whole, seen = draws.uniform() if len(left) > 1 else 0.0, sum(left.values()), 0
    for child, times in left.items():
        seen += times
        if number < seen / whole:
            break
    left[child] -= 1
    if not left[child]:
        del left[child]
    return child
