"""What rejections leave of the target's distribution at a node, without a pass over the vocabulary that can be saved.

One class for each way in which children are proposed. All answer the same questions: `ratio(child)`, the residual over
q at a child's token, both normalised; `reject(child, weight)`, after which the residual r has become (weight r - q)+,
both normalised before; `draw(draws)`, a bonus token of the residual. `mass` is the residual's sum against that of p.
"""

from functools import cached_property
from typing import Callable, Collection, Sequence

import torch
from torch import Tensor

from lib.verify.draft import Draft, Draws
from lib.verify.overlap import Overlap

NEGLIGIBLE = 1e-20  # a chance that no float32 sum would notice, and whose inverse does not overflow
LARGEST = 1e30  # multiple of q beyond which nothing is left, in float32 either
SUBTRACTABLE = 0.25  # down to this mass, 1 minus what q has lost is as good as a sum over what it has


class Independent:
    """At a node whose children are independent draws of q float[V]; p float[V] is the target's.

    ((p - a q)+ - b q)+ = (p - (a + b) q)+, so that one number, `times`, stands for all rejections, and a ratio needs
    two entries, `at`: child -> p, q at its token. The vocabulary is read when the residual's mass is asked for, which
    is 1 - sum min(p, times q), or a token of it.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, tuple[float, float]]):
        self.draft, self.target_probs, self.node, self.at = draft, target_probs, node, at
        self.times, self.p_mass, self.q_mass = 0.0, 1.0, 1.0
        self.kept: dict[int, float] = {}  # child -> the residual at its token, which q has lost: it no longer falls
        self._mass: float | None = 1.0

    @cached_property
    def overlap(self) -> Overlap:
        """Of q with p, not p with q: `times` grows, so that its inverse falls."""
        return Overlap(self.draft.probs[self.node].to(self.target_probs), self.target_probs[self.node])

    @property
    def mass(self) -> float:
        if self._mass is None:
            lost = self.times * self.overlap.at(1 / self.times)
            self._mass = max(0.0, self.p_mass - lost + sum(self.kept[child] - self._at(child) for child in self.kept))
        return self._mass

    def ratio(self, child: int) -> float:
        # A token that was drawn has q > 0; where it has not, nothing is owed to the draft: 0.
        q = self.at[child][1]
        return self._at(child) / self.mass * self.q_mass / q if q > 0 and self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        if weight >= NEGLIGIBLE and self.mass > 0:
            self.times = min(LARGEST, self.times + self.mass / (weight * self.q_mass))
            self._mass = None

    def draw(self, draws: Draws) -> int:
        # Without mass p was q, which is never rejected: only rounding comes here, and any distribution will do.
        return draws.categorical(self.left(), otherwise=self.overlap.p)

    def left(self) -> Tensor:
        """float[V]: the residual, not normalised."""
        q, p = self.overlap.p, self.overlap.q
        if not self.times:
            return p
        left = torch.sub(p, q, alpha=self.times, out=self.overlap.spent()).clamp_min_(0)
        for child, value in self.kept.items():
            left[int(self.draft.tokens[child])] = value
        return left

    def _at(self, child: int) -> float:
        p, q = self.at[child]
        return max(0.0, p - self.times * q)


class Distinct(Independent):
    """At a node whose children are draws without replacement, in draw order: with each rejection q loses its token.

    Where q has no mass left, the next were drawn uniformly from the tokens not yet drawn.
    """

    last: int | None = None  # rejected, and not yet taken out of q: there may be no next child

    def ratio(self, child: int) -> float:
        if self.last is not None:
            self._drop(self.last)
            self.last = None
        return super().ratio(child)

    def reject(self, child: int, weight: float = 1.0) -> None:
        super().reject(child, weight)
        self.last = child

    def _drop(self, child: int) -> None:
        self.kept[child] = self._at(child)
        self.q_mass -= self.at[child][1]
        tokens = self.draft.tokens.tolist()
        if self.q_mass < SUBTRACTABLE:
            self.q_mass = mass_without(self.overlap.p, [tokens[child] for child in self.kept])
        if self.q_mass < NEGLIGIBLE:
            # What is left of p takes its place, q is uniform, and has nothing where p is to be kept.
            q, self.p_mass = without(self.overlap.p, [tokens[child] for child in self.kept]), self.mass
            self.overlap = Overlap(q, self.left())
            self.q_mass, self.times, self.kept = 1.0, 0.0, {}
            self.at = {child: (float(self.overlap.q[tokens[child]]), float(q[tokens[child]])) for child in self.at}


class Chosen:
    """At a node whose children were chosen, not sampled: each was drawn from a one-hot q of its own.

    (w r - q)+ is then w r without the token: nothing is read but p at the children, `at`: child -> p at its token.
    """

    def __init__(self, draft: Draft, target_probs: Tensor, node: int, at: dict[int, float]):
        self.draft, self.target_probs, self.node, self.at = draft, target_probs, node, at
        self.mass = 1.0
        self.rejected: list[int] = []

    def ratio(self, child: int) -> float:
        return self.at[child] / self.mass if self.mass > 0 else 0.0

    def reject(self, child: int, weight: float = 1.0) -> None:
        self.rejected.append(int(self.draft.tokens[child]))
        self.mass = max(0.0, self.mass - self.at[child])

    def draw(self, draws: Draws) -> int:
        p = self.target_probs[self.node]
        return draws.categorical(p, without=self.rejected, otherwise=p)


def at_nodes(draft: Draft, target_probs: Tensor, kind: type[Independent]) -> Callable[[int], Independent | Chosen]:
    """node -> what its children are judged by: `kind` where they were sampled, else `Chosen`."""
    children, p = draft.tree.children, draft.entries(target_probs)
    if draft.proposal == "top_k":
        return lambda node: Chosen(draft, target_probs, node, {child: p(child) for child in children(node)})
    q = draft.entries(draft.proposals())
    return lambda node: kind(draft, target_probs, node, {child: (p(child), q(child)) for child in children(node)})


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


def mass_without(q: Tensor, tokens: Collection[int]) -> float:
    """The sum of q float[V] over all but these tokens: piece by piece, so that nothing is copied or cancels."""
    ends = sorted(tokens)
    return sum(float(q[first:last].sum()) for first, last in zip([0, *(end + 1 for end in ends)], [*ends, len(q)]))
