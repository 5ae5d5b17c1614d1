"""What rejections leave of the target's distribution at a node, without a pass over the vocabulary that can be saved.

One class for each way in which children are proposed. All answer the same questions: `ratio(child)`, the residual over
q at a child's token, both normalised; `reject(child, weight)`, after which the residual r has become (weight r - q)+,
both normalised before; `draw(draws)`, a bonus token of the residual. `mass` is the residual's sum against that of p.
"""

from functools import cached_property
from typing import Callable, Sequence

import torch
from torch import Tensor

from lib.verify.draft import Draft, Draws
from lib.verify.masses import Masses

NEGLIGIBLE = 1e-20  # a chance that no float32 sum would notice, and whose inverse does not overflow
LARGEST = 1e30  # multiple of q beyond which nothing is left, in float32 either
SUBTRACTABLE = 0.25  # down to this mass, 1 minus what q has lost is as good as a sum over what it has


class Independent:
    """At a node whose children are independent draws of q float[V]; p float[V] is the target's.

    ((p - a q)+ - b q)+ = (p - (a + b) q)+, so that one number, `times`, stands for all rejections, and a ratio needs
    two entries, `at`: child -> its token, p, q there. The vocabulary is read when the residual's mass is asked for, or
    a token of it.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, tuple[int, float, float]]):
        self.draft, self.target_probs, self.node, self.at = draft, target_probs, node, at
        self.times, self.whole, self.q_mass = 0.0, 1.0, 1.0  # whole: the mass of p
        self.kept: dict[int, float] = {}  # token -> the residual there, which q has lost: it no longer falls
        self._left: Masses | None = None

    @cached_property
    def p(self) -> Tensor:
        """float[V]: the target's distribution at the node."""
        return self.target_probs[self.node]

    @cached_property
    def q(self) -> Tensor:
        """float[V]: what the children were drawn from."""
        return self.draft.probs[self.node].to(self.target_probs)

    @property
    def left(self) -> Masses:
        """The residual, not normalised."""
        if self._left is None:
            self._left = Masses(self.p, self.q, self.times, instead=dict(self.kept))
        return self._left

    @property
    def mass(self) -> float:
        """Of the residual; of p before any rejection."""
        return self.left.mass if self.times else self.whole

    def ratio(self, child: int) -> float:
        """The residual over q at a child's token."""
        # A token that was drawn has q > 0; where it has not, nothing is owed to the draft: 0.
        q = self.at[child][2]
        return self._at(child) / self.mass * self.q_mass / q if q > 0 and self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        """The residual behind the rejection of a child."""
        if weight >= NEGLIGIBLE and self.mass > 0:
            self.times = min(LARGEST, self.times + self.mass / (weight * self.q_mass))
            self._left = None

    def draw(self, draws: Draws) -> int:
        """A bonus token."""
        # Without mass p was q, which is never rejected: only rounding comes here, and any token of p will do.
        return draws.categorical(self.left if self.times else self.p, otherwise=self.target_probs[self.node])

    def _at(self, child: int) -> float:
        _, p, q = self.at[child]
        return max(0.0, p - self.times * q)


class Distinct(Independent):
    """At a node whose children are draws without replacement, in draw order: with each rejection q loses its token.

    Where q has no mass left, the next were drawn uniformly from the tokens not yet drawn.
    """

    last: int | None = None  # rejected, and not yet taken out of q: there may be no next child

    def ratio(self, child: int) -> float:
        """The residual over q at a child's token."""
        if self.last is not None:
            self._drop(self.last)
            self.last = None
        return super().ratio(child)

    def reject(self, child: int, weight: float = 1.0) -> None:
        """The residual behind the rejection of a child."""
        super().reject(child, weight)
        self.last = child

    def _drop(self, child: int) -> None:
        token, _, q = self.at[child]
        self.kept[token] = self._at(child)
        self.q_mass -= q
        if self.q_mass < SUBTRACTABLE:
            self.q_mass = Masses(self.q, instead=dict.fromkeys(self.kept, 0.0)).mass
        if self.q_mass < NEGLIGIBLE:
            # What is left of p takes its place, q is uniform, and has nothing where p is to be kept.
            self.p, self.whole, self.q = self.left.written(), self.mass, without(self.q, list(self.kept))
            self.q_mass, self.times, self.kept, self._left = 1.0, 0.0, {}, None
            self.at = {x: (token, float(self.p[token]), float(self.q[token])) for x, (token, *_) in self.at.items()}


class Chosen:
    """At a node whose children were chosen, not sampled: each was drawn from a one-hot q of its own.

    (w r - q)+ is then w r without the token: nothing is read but p at the children, `at`: child -> its token, p there.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, tuple[int, float]]):
        self.target_probs, self.node, self.at = target_probs, node, at
        self.mass = 1.0
        self.rejected: list[int] = []

    def ratio(self, child: int) -> float:
        """The residual over q at a child's token."""
        return self.at[child][1] / self.mass if self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        """The residual behind the rejection of a child."""
        token, p = self.at[child]
        self.rejected.append(token)
        self.mass = max(0.0, self.mass - p)

    def draw(self, draws: Draws) -> int:
        """A bonus token."""
        p = self.target_probs[self.node]
        return draws.categorical(p, without=self.rejected, otherwise=p)


def at_nodes(draft: Draft, target_probs: Tensor, kind: type[Independent]) -> Callable[[int], Independent | Chosen]:
    """node -> what its children are judged by: `kind` where they were sampled, else `Chosen`."""
    children, tokens, p = draft.tree.children, draft.tokens.tolist(), draft.entries(target_probs)
    if draft.proposal == "top_k":
        return lambda node: Chosen(draft, target_probs, node, {x: (tokens[x], p(x)) for x in children(node)})
    q = draft.entries(draft.proposals())
    return lambda node: kind(draft, target_probs, node, {x: (tokens[x], p(x), q(x)) for x in children(node)})


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """The distribution q float[V] with these tokens taken out, normalised; uniform over the others where no mass is
    left."""
    left = q.clone()
    left[tokens] = 0
    mass = float(left.sum())
    if mass <= 0:
        left = torch.ones_like(q)
        left[tokens] = 0
        mass = float(left.sum())
    return left / mass if mass > 0 else left
