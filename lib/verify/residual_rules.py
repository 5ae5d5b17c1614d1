"""Rules that accept a sampled child with a probability, and continue with the target's residual after a rejection.

`multi_step`, `without_replacement` and `k_seq` decide about siblings, from the root down. `block` and `traversal`
decide about whole paths, from the leaves up, and may keep a long path that single steps would have cut.
"""

import torch
from scipy.optimize import brentq
from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify import plain
from lib.verify.draft import Draft, Draws, MergedDraft, descend
from lib.verify.residual import Distinct, Independent, at_nodes


def multi_step(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecInfer's multi-step speculative sampling (Miao et al. 2024, Alg. 2), for children drawn independently from q.

    The draws, repeats included, are tried in random order: x is accepted if U < p(x) / q(x), else p becomes the
    normalised (p - q)+ and one draw of x is used up. If none is left, the bonus token is drawn from p.
    """
    if isinstance(draft, MergedDraft):  # each draw has a q of its own, which one multiple of q cannot stand for
        return plain.multi_step(draft, target_probs, draws)
    residual_at = at_nodes(draft, target_probs, Independent)

    def decide(node: int, children: tuple[int, ...]):
        residual, left = residual_at(node), draft.samples(node)
        while left:
            child, _ = plain.take_any(left, draws)
            if draws.uniform() < residual.ratio(child):
                return child, None
            residual.reject(child)
        return None, residual.draw(draws)

    return descend(draft, target_probs, draws, decide)


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


def k_seq(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """SpecTr's K-SEQ (Sun et al. 2023) among the k draws of each family of siblings, repeats included.

    A draw of x is accepted if U < p(x) / (rho q(x)), see `k_seq_scale`. If none is, the bonus token is drawn from
    p - min(p / rho, q) (1 - (1 - b)^k) / b, normalised.
    """
    p_at, q_at = draft.entries(target_probs), draft.entries(draft.proposal_probs())

    def decide(node: int, children: tuple[int, ...]):
        p, q, left = target_probs[node], draft.probs[node].to(target_probs), draft.samples(node)
        k = len(left)
        rho = k_seq_scale(p, q, k)
        while left:
            child, _ = plain.take_any(left, draws)
            # A drawn token has q > 0; if rounding made it 0, the draw is rejected.
            if q_at(child) > 0 and draws.uniform() < p_at(child) / q_at(child) / rho:
                return child, None
        shared = torch.minimum(p / rho, q)
        b = min(1.0, float(shared.sum()))
        share = (1 - (1 - b) ** k) / b if b > 0 else 1.0
        return None, draws.categorical((p - share * shared).clamp_min(0), otherwise=p)

    return descend(draft, target_probs, draws, decide)


def k_seq_scale(p: Tensor, q: Tensor, k: int) -> float:
    """The rho in [1, k] with 1 - (1 - b)^k = rho b, where b = sum min(p / rho, q); p, q float[V].

    Any rho that is not below the solution is lossless, and this one is rounded up until half of the digits of the
    chance of acceptance are right.
    """
    close = torch.finfo(p.dtype).eps ** 0.5

    def over(rho: float) -> float:
        """Above 0 where rho is at least close / 2 too large; its slope is at most k + 1."""
        b = min(1.0, float(torch.minimum(p / rho, q).sum()))
        return rho * b - (1 - (1 - b) ** k) - close / 2

    return brentq(over, 1.0, float(k), xtol=close / (4 * (k + 1))) if over(k) > 0 else float(k)


def block(draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Block verification of a chain (Sun et al. 2024), which is traversal verification of a tree without branches; no
    lossless rule accepts more of a sampled chain.
    """
    return traversal(draft, target_probs, draws)


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
    # Of the path from the root to the present node: its nodes, their w, residuals, and children not yet visited.
    path, weights, residuals, remaining = [ROOT], [1.0], [residual_at(ROOT)], [iter(draft.tree.children(ROOT))]
    while True:
        child = next(remaining[-1], None)
        if child is not None:
            weights.append(min(1.0, weights[-1] * residuals[-1].ratio(child)))
            path.append(child)
            residuals.append(residual_at(child))
            remaining.append(iter(draft.tree.children(child)))
        elif len(path) == 1 or draws.uniform() < weights[-1]:
            return path[1:], residuals[-1].draw(draws)
        else:
            leaf, *_ = (each.pop() for each in (path, weights, residuals, remaining))
            residual, w, before = residuals[-1], weights[-1], residuals[-1].mass
            residual.reject(leaf, w)
            s = w * residual.mass / before if before > 0 else 0.0
            weights[-1] = s / (s + (1 - w)) if s > 0 else 0.0  # the brackets matter where w = 1 and S is tiny
