"""Rules that decide about whole paths, from the leaves up: a long path may be kept that single steps would have cut."""

from itertools import pairwise

import torch
from torch import Tensor

from lib.tree import ROOT
from lib.verify.draft import Draft, Draws, one_hot
from lib.verify.residual import Remaining, ratio


def block(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Block verification of a chain x_1 .. x_L (Sun et al. 2024); of all lossless rules it accepts most
    there.

    w_0 = 1, w_i = min(1, w_(i-1) p(x_i) / q(x_i)). With S_i = sum (w_i p - q)+ behind x_i: h_i = S_i / (S_i + 1 -
    w_i), and h_L = w_L. Accept up to the last i with U_i < h_i, or nothing; emit from the normalised (w_i p - q)+,
    from p if i = L.
    """
    tokens = draft.tokens.tolist()
    path = [ROOT]
    while children := draft.tree.children(path[-1]):
        path.append(children[0])
    behind = [_drawn_from(draft, parent, tokens[child], target_probs[parent]) for parent, child in pairwise(path)]
    weights = [1.0]
    for parent, child, q in zip(path, path[1:], behind):
        weights.append(min(1.0, weights[-1] * ratio(target_probs[parent], q, tokens[child])))
    if len(path) > 1 and draws.uniform() < weights[-1] or len(path) == 1:
        return path[1:], draws.categorical(target_probs[path[-1]])
    for length in reversed(range(len(path) - 1)):
        w, p = weights[length], target_probs[path[length]]
        left = torch.sub(w * p, behind[length]).clamp_min_(0)
        mass = float(left.sum())
        if length == 0 or draws.uniform() < _alone(mass, w):
            return path[1 : length + 1], draws.categorical(left if mass > 0 else p)


def traversal(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Traversal verification of a tree (Weng et al. 2025, arXiv 2505.12398): leaves first, in draw order.

    w(root) = 1, w(x) = min(1, w p(x) / q(x)) with w, p, q of x's parent. A leaf is accepted with its whole path if U
    < w, and the bonus token is emitted from its p. Else it is deleted: at its parent, with S = sum (w p - q)+, p
    becomes the normalised (w p - q)+, w becomes S / (S + 1 - w), q loses the leaf's token and is normalised; the
    parent may be a leaf now. The root is always accepted. Children that were chosen, not sampled, count as drawn from
    a one-hot q each. Of independent samples, the distinct ones in the order first drawn are draws without
    replacement, whatever their counts.
    """
    tokens = draft.tokens.tolist()

    def visit(node: int, w: float) -> tuple[int, Tensor] | None:
        rest = Remaining(target_probs[node], target_probs[node])
        for place, child in enumerate(draft.tree.children(node)):
            token = tokens[child]
            if place == 0 or draft.proposal == "top_k":
                rest.draw_from(_drawn_from(draft, node, token, target_probs[node]))
            else:
                rest.drop(tokens[draft.tree.children(node)[place - 1]])
            found = visit(child, min(1.0, w * rest.ratio(token)))
            if found is not None:
                return found
            mass = rest.reject(w)
            w = _alone(mass, w)
        return (node, rest.p) if node == ROOT or draws.uniform() < w else None

    node, emitted_from = visit(ROOT, 1.0)
    return list(draft.tree.path(node)[1:]), draws.categorical(emitted_from)


def _alone(mass: float, w: float) -> float:
    """S / (S + 1 - w): the weight of a path once what is below it has been rejected."""
    return mass / (mass + (1 - w)) if mass > 0 else 0.0  # the brackets matter where w = 1 and S is tiny


def _drawn_from(draft: Draft, node: int, token: int, like: Tensor) -> Tensor:
    return one_hot(token, like) if draft.proposal == "top_k" else draft.proposal_at(node, like)
