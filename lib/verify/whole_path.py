"""Rules that decide about whole paths, from the leaves up: a long path may be kept that single steps would have cut."""

from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify.draft import Draft, Draws
from lib.verify.residual import Distinct, at_nodes


def block(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Block verification of a chain x_1 .. x_L (Sun et al. 2024); of all lossless rules it accepts most
    there.

    w_0 = 1, w_i = min(1, w_(i-1) p(x_i) / q(x_i)). With S_i = sum (w_i p - q)+ behind x_i: h_i = S_i / (S_i + 1 -
    w_i), and h_L = w_L. Accept up to the last i with U_i < h_i, or nothing; emit from the normalised (w_i p - q)+,
    from p if i = L.
    """
    rest_at = at_nodes(draft, target_probs, Distinct)
    path, rests, weights = [ROOT], [], [1.0]
    while children := draft.tree.children(path[-1]):
        rests.append(rest_at(path[-1]))
        path.append(children[0])
        weights.append(min(1.0, weights[-1] * rests[-1].ratio(path[-1])))
    if len(path) == 1 or draws.uniform() < weights[-1]:
        return path[1:], draws.categorical(target_probs[path[-1]])
    for length in reversed(range(len(path) - 1)):
        rest, w = rests[length], weights[length]
        rest.reject(path[length + 1], w)
        if length == 0 or draws.uniform() < _alone(w * rest.mass, w):
            return path[1 : length + 1], rest.draw(draws)


def traversal(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Traversal verification of a tree (Weng et al. 2025, arXiv 2505.12398): leaves first, in draw order.

    w(root) = 1, w(x) = min(1, w p(x) / q(x)) with w, p, q of x's parent. A leaf is accepted with its whole path if U
    < w, and the bonus token is emitted from its p. Else it is deleted: at its parent, with S = sum (w p - q)+, p
    becomes the normalised (w p - q)+, w becomes S / (S + 1 - w), q loses the leaf's token and is normalised; the
    parent may be a leaf now. The root is always accepted. Children that were chosen, not sampled, count as drawn from
    a one-hot q each. Of independent samples, the distinct ones in the order first drawn are draws without
    replacement, whatever their counts.
    """
    rest_at = at_nodes(draft, target_probs, Distinct)

    def visit(node: int, w: float) -> tuple[int, int] | None:
        """The node at or below this one that is accepted, and the bonus token; None where all are deleted."""
        children = draft.tree.children(node)
        if not children:
            accepted = node == ROOT or draws.uniform() < w
            return (node, draws.categorical(target_probs[node])) if accepted else None
        rest = rest_at(node)
        for child in children:
            found = visit(child, min(1.0, w * rest.ratio(child)))
            if found is not None:
                return found
            before = rest.mass
            rest.reject(child, w)
            w = _alone(w * rest.mass / before if before > 0 else 0.0, w)
        return (node, rest.draw(draws)) if node == ROOT or draws.uniform() < w else None

    node, bonus = visit(ROOT, 1.0)
    return list(draft.tree.path(node)[1:]), bonus


def _alone(mass: float, w: float) -> float:
    """S / (S + 1 - w): the weight of a path once what is below it has been rejected."""
    return mass / (mass + (1 - w)) if mass > 0 else 0.0  # the brackets matter where w = 1 and S is tiny
