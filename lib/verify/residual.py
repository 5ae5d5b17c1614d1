"""The residual of the target's distribution at a node after rejections, reading the vocabulary as rarely as possible.

One class per way of proposing children, all with the same methods: `ratio(child)` is residual / q at a child's token,
both normalised; `reject(child, weight)` turns the residual r into (weight r - q)+, both normalised before;
`draw(draws)` draws a bonus token from the residual. `mass` is the residual's sum relative to that of p.
"""

from functools import cached_property
from typing import Callable, Sequence

import torch
from torch import Tensor

from lib.verify.draft import Draft, Draws
from lib.verify.draws import Masses

NEGLIGIBLE = 1e-20  # a chance too small to change a float32 sum, whose inverse does not overflow
LARGEST = 1e30  # the multiple of q beyond which nothing of p is left, in float32 too
SUBTRACTABLE = 0.25  # down to this mass of q, 1 minus the lost mass is as exact as a sum over the remaining tokens


class Independent:
    """At a node whose children are independent draws from q float[V]; p float[V] is the target's distribution.

    ((p - a q)+ - b q)+ = (p - (a + b) q)+, so one number, `times`, represents all rejections, and a ratio needs two
    entries; `at` maps a child to its token, p and q there. Only the residual's mass and its draws read the vocabulary.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, tuple[int, float, float]]):
        self.draft, self.target_probs, self.node, self.at = draft, target_probs, node, at
        self.times, self.p_mass, self.q_mass = 0.0, 1.0, 1.0
        self.kept: dict[int, float] = {}  # token that q has lost -> the residual there, which no longer falls
        self._left: Masses | None = None

    @cached_property
    def p(self) -> Tensor:
        """float[V]: the target's distribution at the node."""
        return self.target_probs[self.node]

    @cached_property
    def q(self) -> Tensor:
        """float[V]: the distribution that the children were drawn from."""
        return self.draft.probs[self.node].to(self.target_probs)

    @property
    def left(self) -> Masses:
        """The residual, not normalised."""
        if self._left is None:
            self._left = Masses(self.p, self.q, self.times, instead=dict(self.kept))
        return self._left

    @property
    def mass(self) -> float:
        """The residual's sum; that of p before any rejection."""
        return self.left.mass if self.times else self.p_mass

    def ratio(self, child: int) -> float:
        """Residual / q at a child's token."""
        # A drawn token has q > 0; if rounding made it 0, the child is rejected.
        q = self.at[child][2]
        return self._at(child) / self.mass * self.q_mass / q if q > 0 and self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        """Updates the residual for the rejection of a child."""
        if weight >= NEGLIGIBLE and self.mass > 0:
            self.times = min(LARGEST, self.times + self.mass / (weight * self.q_mass))
            self._left = None

    def draw(self, draws: Draws) -> int:
        """A bonus token, drawn from the residual."""
        # No mass is left only where p equals q up to rounding; any token of p is right then.
        return draws.categorical(self.left if self.times else self.p, otherwise=self.target_probs[self.node])

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
            self.q_mass = Masses(self.q, instead=dict.fromkeys(self.kept, 0.0)).mass
        if self.q_mass < NEGLIGIBLE:
            # The residual becomes p; q becomes uniform over the other tokens, and 0 where p must not fall.
            self.p, self.p_mass, self.q = self.left.dense(), self.mass, without(self.q, list(self.kept))
            self.q_mass, self.times, self.kept, self._left = 1.0, 0.0, {}, None
            self.at = {x: (token, float(self.p[token]), float(self.q[token])) for x, (token, *_) in self.at.items()}


class Chosen:
    """At a node whose children were chosen, not sampled: each counts as drawn from a one-hot q of its own.

    (w r - q)+ is then w r without the token, so only p at the children is read; `at` maps a child to its token and p.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, tuple[int, float]]):
        self.target_probs, self.node, self.at = target_probs, node, at
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
        p = self.target_probs[self.node]
        return draws.categorical(p, without=self.rejected, otherwise=p)


def at_nodes(draft: Draft, target_probs: Tensor, kind: type[Independent]) -> Callable[[int], Independent | Chosen]:
    """node -> its residual: `kind` for sampled children, `Chosen` for top-k children."""
    children, tokens, p = draft.tree.children, draft.token_list, draft.entries(target_probs)
    if draft.proposal == "top_k":
        return lambda node: Chosen(draft, target_probs, node, {x: (tokens[x], p(x)) for x in children(node)})
    q = draft.entries(draft.proposal_probs())
    return lambda node: kind(draft, target_probs, node, {x: (tokens[x], p(x), q(x)) for x in children(node)})


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """q float[V] without these tokens, normalised; uniform over the other tokens where no mass is left."""
    left = q.clone()
    left[tokens] = 0
    mass = float(left.sum())
    if mass <= 0:
        left = torch.ones_like(q)
        left[tokens] = 0
        mass = float(left.sum())
    return left / mass if mass > 0 else left
