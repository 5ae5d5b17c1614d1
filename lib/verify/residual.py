"""The residual of the target's distribution at a node after rejections.

One class per way of proposing children, all with the same methods: `ratio(child)` is residual / q at a child's token,
both normalised; `reject(child, weight)` turns the residual r into (weight r - q)+, both normalised before;
`draw(draws)` draws a bonus token from the residual. `mass` is the residual's sum relative to that of p. Only a
rejection and a draw read the vocabulary.
"""

from typing import Callable, Sequence

import torch
from torch import Tensor

from lib.verify.draft import Draft, Draws

NEGLIGIBLE = 1e-20  # a chance too small to change a float32 sum, whose inverse does not overflow
LARGEST = 1e30  # the multiple of q beyond which nothing of p is left, in float32 too
SUBTRACTABLE = 0.25  # down to this mass of q, 1 minus the lost mass is as exact as a sum over the remaining tokens


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
