"""The fast forms of the rules that continue with the target's residual after a rejection; `plain` defines them.

`multi_step`, `without_replacement` and `k_seq` decide about siblings, from the root down. `block` and `traversal`
decide about whole paths, from the leaves up, and may keep a long path that single steps would have cut.

A residual class serves one way of proposing children at a node, all with the same methods: `ratio(child)` is residual /
q at a child's token, both normalised; `reject(child, weight)` turns the residual r into (weight r - q)+, both
normalised before; `draw(draws)` draws a bonus token from the residual. `mass` is the residual's sum relative to that of
p. Only a rejection and a draw read the vocabulary.
"""

from typing import Callable, Sequence

import torch
from torch import Tensor

from lib.trees.tree import ROOT
from lib.verify import plain
from lib.verify.draft import Draft, Draws, MergedDraft, descend

NEGLIGIBLE = 1e-20  # a chance too small to change a float32 sum, whose inverse does not overflow
LARGEST = 1e30  # the multiple of q beyond which nothing of p is left, in float32 too
SUBTRACTABLE = 0.25  # down to this mass of q, 1 minus the lost mass is as exact as a sum over the remaining tokens


# ---------------------------------------------------------------------------------------------------------------- rules


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
    from scipy.optimize import brentq  # takes longer to import than this package

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


# ------------------------------------------------------------------------------------------------------------ residuals


class Independent:
    """At a node whose children are independent draws from q float[V]; p float[V] is the target's distribution.

    ((p - a q)+ - b q)+ = (p - (a + b) q)+, so one number, `times`, represents all rejections, and a ratio needs two
    entries; `at` maps a child to its token, p and q there. `left` float[V] is the residual, not normalised.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, tuple[int, float, float]]):
        self.p = self.left = self.given = target_probs[node]
        self.q, self.at = draft.probs[node].to(target_probs), at
        self.times, self.mass, self.q_mass = 0.0, 1.0, 1.0
        self.kept: dict[int, float] = {}  # token that q has lost -> the residual there, which no longer falls

    def ratio(self, child: int) -> float:
        """Residual / q at a child's token."""
        # A drawn token has q > 0; if rounding made it 0, the child is rejected.
        q = self.at[child][2]
        return self._at(child) / self.mass * self.q_mass / q if q > 0 and self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        """Updates the residual for the rejection of a child."""
        if weight >= NEGLIGIBLE and self.mass > 0:
            self.times = min(LARGEST, self.times + self.mass / (weight * self.q_mass))
            self.left = torch.sub(self.p, self.q, alpha=self.times).clamp_min_(0)
            self.left[list(self.kept)] = self.left.new_tensor(list(self.kept.values()))
            self.mass = float(self.left.sum())

    def draw(self, draws: Draws) -> int:
        """A bonus token, drawn from the residual."""
        # No mass is left only where p equals q up to rounding; any token of p is right then.
        return draws.categorical(self.left, otherwise=self.given)

    def _at(self, child: int) -> float:
        _, p, q = self.at[child]
        return max(0.0, p - self.times * q)


class Distinct(Independent):
    """At a node whose children are draws without replacement, in draw order: each rejection takes a token out of q.

    Where q has no mass left, the next children were drawn uniformly from the tokens not yet drawn.
    """

    last: int | None = None  # the last rejected child, taken out of q when another child follows

    def ratio(self, child: int) -> float:
        """Residual / q at a child's token."""
        if self.last is not None:
            self._drop(self.last)
            self.last = None
        return super().ratio(child)

    def reject(self, child: int, weight: float = 1.0) -> None:
        """Updates the residual for the rejection of a child."""
        super().reject(child, weight)
        self.last = child

    def _drop(self, child: int) -> None:
        token, _, q = self.at[child]
        self.kept[token] = self._at(child)
        self.q_mass -= q
        if self.q_mass < SUBTRACTABLE:
            self.q_mass = float(_emptied(self.q, list(self.kept)).sum())
        if self.q_mass < NEGLIGIBLE:
            # The residual becomes p; q becomes uniform over the other tokens, and 0 where p must not fall.
            self.p, self.q = self.left, without(self.q, list(self.kept))
            self.q_mass, self.times, self.kept = 1.0, 0.0, {}
            self.at = {x: (token, float(self.p[token]), float(self.q[token])) for x, (token, *_) in self.at.items()}


class Chosen:
    """At a node whose children were chosen, not sampled: each counts as drawn from a one-hot q of its own.

    (w r - q)+ is then w r without the token, so only p at the children is read; `at` maps a child to its token and p.
    """

    def __init__(self, target_probs: Tensor, node: int, at: dict[int, tuple[int, float]]):
        self.p, self.at = target_probs[node], at
        self.mass = 1.0
        self.rejected: list[int] = []

    def ratio(self, child: int) -> float:
        """Residual / q at a child's token."""
        return self.at[child][1] / self.mass if self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        """Updates the residual for the rejection of a child."""
        token, p = self.at[child]
        self.rejected.append(token)
        self.mass = max(0.0, self.mass - p)

    def draw(self, draws: Draws) -> int:
        """A bonus token, drawn from the residual."""
        return draws.categorical(_emptied(self.p, self.rejected), otherwise=self.p)


def at_nodes(draft: Draft, target_probs: Tensor, kind: type[Independent]) -> Callable[[int], Independent | Chosen]:
    """node -> its residual: `kind` for sampled children, `Chosen` for top-k children."""
    children, tokens, p = draft.tree.children, draft.token_list, draft.entries(target_probs)
    if draft.proposal == "top_k":
        return lambda node: Chosen(target_probs, node, {x: (tokens[x], p(x)) for x in children(node)})
    q = draft.entries(draft.proposal_probs())
    return lambda node: kind(draft, target_probs, node, {x: (tokens[x], p(x), q(x)) for x in children(node)})


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """q float[V] without these tokens, normalised; uniform over the other tokens where no mass is left."""
    left = _emptied(q, tokens)
    if not left.sum() > 0:
        left = _emptied(torch.ones_like(q), tokens)
    mass = float(left.sum())
    return left / mass if mass > 0 else left


def _emptied(row: Tensor, tokens: Sequence[int]) -> Tensor:
    """A copy of row float[V] with 0 at these tokens."""
    return row.index_fill(0, torch.tensor(tokens, dtype=torch.long, device=row.device), 0)
