"""Rules that accept a sampled child with a probability, and continue with the target's residual after a rejection.

`multi_step` and `without_replacement` decide about siblings, from the root down. `block` and `traversal` decide about
whole paths, from the leaves up, and may keep a long path that single steps would have cut.
"""

from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import Draft, Draws, MergedDraft, descend
from lib.verify.residual import Distinct, Independent, at_nodes


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2024, Alg. 2), for children drawn independently from q.

    The draws, repeats included, are tried in random order: x is accepted if U < p(x) / q(x), else p becomes the
    normalised (p - q)+ and one draw of x is used up. If none is left, the bonus token is drawn from p.
    """
    if isinstance(draft, MergedDraft):  # each draw has a q of its own, which one multiple of q cannot stand for
        from lib.verify import plain

        return plain.multi_step(draft, target_probs, draws)
    counts, residual_at = draft.times_drawn(), at_nodes(draft, target_probs, Independent)

    def decide(node: int, children: tuple[int, ...]):
        residual, left = residual_at(node), {child: counts[child] for child in children}
        while left:
            child = take_any(left, draws)
            if draws.uniform() < residual.ratio(child):
                return child, None
            residual.reject(child)
        return None, residual.draw(draws)

    return descend(draft, target_probs, draws, decide)


def take_any(left: dict[int, int], draws: Draws) -> int:
    """Removes one of the remaining draws (child -> times drawn), each equally likely, and returns its child."""
    number, whole, seen = draws.uniform() if len(left) > 1 else 0.0, sum(left.values()), 0
    for child, times in left.items():
        seen += times
        if number < seen / whole:
            break
    left[child] -= 1
    if not left[child]:
        del left[child]
    return child


def without_replacement(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Sequoia's rule (Chen et al. 2024, Alg. 2), for children drawn from q without replacement, tried in draw order.

    x is accepted if U < p(x) / q(x); else p becomes the normalised (p - q)+, q loses x and is normalised again. Where
    q has no mass left, the drafter drew uniformly from the tokens not yet drawn, and so does the rule. If no child is
    left, the bonus token is drawn from p.
    """
    residual_at = at_nodes(draft, target_probs, Distinct)

    def decide(node: int, children: tuple[int, ...]):
        residual = residual_at(node)
        for child in children:
            if draws.uniform() < residual.ratio(child):
                return child, None
            residual.reject(child)
        return None, residual.draw(draws)

    return descend(draft, target_probs, draws, decide)


def block(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Block verification of a chain x_1 .. x_L (Sun et al. 2024); no lossless rule accepts more of a sampled chain.

    w_0 = 1, w_i = min(1, w_(i-1) p(x_i) / q(x_i)). With S_i = sum (w_i p - q)+ after x_i: h_i = S_i / (S_i + 1 - w_i),
    and h_L = w_L. Accept up to the last i with U_i < h_i, or nothing. The bonus token is drawn from the normalised
    (w_i p - q)+, or from p if i = L.
    """
    residual_at = at_nodes(draft, target_probs, Distinct)
    path, residuals, weights = [ROOT], [], [1.0]
    while children := draft.tree.children(path[-1]):
        residuals.append(residual_at(path[-1]))
        path.append(children[0])
        weights.append(min(1.0, weights[-1] * residuals[-1].ratio(path[-1])))
    if len(path) == 1 or draws.uniform() < weights[-1]:
        return path[1:], draws.categorical(target_probs[path[-1]])
    for length in reversed(range(len(path) - 1)):
        residual, w = residuals[length], weights[length]
        residual.reject(path[length + 1], w)
        if length == 0 or draws.uniform() < stop_weight(w * residual.mass, w):
            return path[1 : length + 1], residual.draw(draws)


def traversal(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Traversal verification of a tree (Weng et al. 2025, arXiv 2505.12398): leaves first, in draw order.

    w(root) = 1, w(x) = min(1, w p(x) / q(x)) with w, p, q of x's parent. A leaf is accepted with its whole path if U
    < w, and the bonus token is drawn from its p. Else it is deleted: at its parent, with S = sum (w p - q)+, p becomes
    the normalised (w p - q)+, w becomes S / (S + 1 - w), q loses the leaf's token and is normalised; the parent may
    then be a leaf. The root is always accepted.

    Top-k children count as drawn from a one-hot q each. The distinct ones of independent samples, in the order first
    drawn, are draws without replacement, whatever their counts.
    """
    residual_at = at_nodes(draft, target_probs, Distinct)

    def visit(node: int, w: float) -> tuple[int, int] | None:
        """The accepted node at or below this one, and the bonus token; None if all are deleted."""
        children = draft.tree.children(node)
        if not children:
            accepted = node == ROOT or draws.uniform() < w
            return (node, draws.categorical(target_probs[node])) if accepted else None
        residual = residual_at(node)
        for child in children:
            end = visit(child, min(1.0, w * residual.ratio(child)))
            if end is not None:
                return end
            before = residual.mass
            residual.reject(child, w)
            w = stop_weight(w * residual.mass / before if before > 0 else 0.0, w)
        return (node, residual.draw(draws)) if node == ROOT or draws.uniform() < w else None

    node, bonus = visit(ROOT, 1.0)
    return list(draft.tree.path(node)[1:]), bonus


def stop_weight(mass: float, w: float) -> float:
    """S / (S + 1 - w): the weight of a path after everything below it has been rejected."""
    return mass / (mass + (1 - w)) if mass > 0 else 0.0  # the brackets matter where w = 1 and S is tiny
