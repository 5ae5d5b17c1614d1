"""What rejections leave of the target's distribution at a node, without a pass over the vocabulary that can be saved.

One class for each way in which children are proposed. All answer the same three questions: `ratio(token)`, the residual
over q at the next child's token, both normalised; `reject(token, weight)`, after which the residual r has become
(weight r - q)+, both normalised before; `residual()` float[V], not normalised, what the bonus token is drawn from.
`mass` is the residual's sum against that of p.
"""

import math
from typing import Callable, Sequence

import torch
from torch import Tensor

from lib.verify.draft import Draft

NEGLIGIBLE = 1e-20  # a chance that no float32 sum would notice, and whose inverse does not overflow
LARGEST = 1e30  # multiple of q beyond which nothing is left, in float32 either
SUBTRACTABLE = 0.25  # down to this mass, 1 minus what q has lost is as good as a sum over what it has


class Independent:
    """At a node whose children are independent draws of q float[V]; p float[V] is the target's.

    ((p - a q)+ - b q)+ = (p - (a + b) q)+, so that one number, `times`, stands for all rejections. The vocabulary is
    read when the residual's mass is asked for; a ratio needs two entries, `at`: token -> p, q of each child.
    """

    def __init__(self, p: Tensor, q: Tensor, at: dict[int, tuple[float, float]]):
        self.p, self.q, self.at, self.q_mass = p, q, at, 1.0
        self.times = 0.0
        self.kept: dict[int, float] = {}  # the residual at tokens that q has lost, where it no longer falls
        self._written, self._mass = p, 1.0

    @property
    def mass(self) -> float:
        if self._mass is None:
            self._mass = float(self._write().sum())
        return self._mass

    def ratio(self, token: int) -> float:
        # A token that was drawn has q > 0; where it has not, nothing is owed to the draft: 0.
        q = self.at[token][1]
        return self._at(token) / self.mass * self.q_mass / q if q > 0 and self.mass > 0 else 0.0

    def reject(self, token: int, weight: float = 1.0) -> None:
        if weight >= NEGLIGIBLE:
            self.times = min(LARGEST, self.times + self.mass / (weight * self.q_mass))
            self._written = self._mass = None

    def residual(self) -> Tensor:
        # Without mass p was q, which is never rejected: only rounding comes here, and any distribution will do.
        return self._write() if self.mass > 0 else self.q

    def _at(self, token: int) -> float:
        p, q = self.at[token]
        return max(0.0, p - self.times * q)

    def _write(self) -> Tensor:
        if self._written is None:
            self._written = torch.sub(self.p, self.q, alpha=self.times).clamp_min_(0)
            for token, value in self.kept.items():
                self._written[token] = value
        return self._written


class Distinct(Independent):
    """At a node whose children are draws without replacement, in draw order: with each rejection q loses its token.

    Where q has no mass left, the next were drawn uniformly from the tokens not yet drawn.
    """

    last: int | None = None  # rejected, and not yet taken out of q: there may be no next child

    def ratio(self, token: int) -> float:
        if self.last is not None:
            self._drop(self.last)
            self.last = None
        return super().ratio(token)

    def reject(self, token: int, weight: float = 1.0) -> None:
        super().reject(token, weight)
        self.last = token

    def _drop(self, token: int) -> None:
        self.kept[token] = self._at(token)
        self.q_mass -= self.at[token][1]
        if self.q_mass < SUBTRACTABLE:
            self.q_mass = float(without_mass(self.q, list(self.kept)).sum())
        if self.q_mass < NEGLIGIBLE:
            # What is left of p takes its place, q is uniform, and has nothing where p is to be kept.
            self.p, self.q = self._write(), without(self.q, list(self.kept))
            self.q_mass, self.times, self.kept = 1.0, 0.0, {}
            self.at = {child: (float(self.p[child]), float(self.q[child])) for child in self.at}


class Chosen:
    """At a node whose children were chosen, not sampled: each was drawn from a one-hot q of its own.

    (w r - q)+ is then w r without the token: nothing is read but p at the children, `at`: token -> p.
    """

    def __init__(self, p: Tensor, at: dict[int, float]):
        self.p, self.at, self.mass = p, at, 1.0
        self.rejected: list[int] = []

    def ratio(self, token: int) -> float:
        return self.at[token] / self.mass if self.mass > 0 else 0.0

    def reject(self, token: int, weight: float = 1.0) -> None:
        self.rejected.append(token)
        self.mass = max(0.0, self.mass - self.at[token])

    def residual(self) -> Tensor:
        left = without_mass(self.p, self.rejected) if self.rejected else self.p
        return left if left.sum() > 0 else self.p


def at_nodes(draft: Draft, target_probs: Tensor, kind: type[Independent]) -> Callable[[int], Independent | Chosen]:
    """node -> what its children are judged by: `kind` where they were sampled, else `Chosen`.

    The entries that ratios need are read here, for all nodes at once.
    """
    tokens, children = draft.tokens.tolist(), draft.tree.children
    p = _drafted(draft, target_probs)
    if draft.proposal == "top_k":
        return lambda node: Chosen(target_probs[node], {tokens[child]: p[child] for child in children(node)})
    q = _drafted(draft, draft.probs)
    return lambda node: kind(
        target_probs[node],
        draft.proposal_at(node, target_probs),
        {tokens[child]: (p[child], q[child]) for child in children(node)},
    )


def _drafted(draft: Draft, probs: Tensor) -> list[float]:
    """What probs float[m, V] give every node's token in its parent's row; NaN for the root."""
    parents, tokens = torch.tensor(draft.tree.parents[1:]), draft.tokens[1:]
    return [math.nan, *probs[parents.to(probs.device), tokens.to(probs.device)].tolist()]


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """The distribution q float[V] with these tokens taken out, normalised; uniform over the others where no mass is
    left."""
    left = without_mass(q, tokens)
    mass = float(left.sum())
    if mass <= 0:
        left = without_mass(torch.ones_like(q), tokens)
        mass = float(left.sum())
    return left / mass if mass > 0 else left


def without_mass(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """A copy of q float[V] in which these tokens have none."""
    left = q.clone()
    left[tokens] = 0
    return left
