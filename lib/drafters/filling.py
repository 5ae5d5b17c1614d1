"""A static shape while it is filled, and how the children of a node come from a distribution."""

from typing import Sequence

import torch
from torch import Tensor

from lib.drafters.fill_plan import children
from lib.models.reduced import ReducedOutput
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.residual import without
from lib.verify.warping import best_token, warp


def top_tokens(scores: Tensor, count: int) -> Tensor:
    """The best tokens of each row of scores [S, V], int64[S, count]; of equals the one with the lower index first."""
    vocabulary = scores.shape[-1]
    if count > vocabulary:
        raise ValueError(f"the tree has a child of rank {count - 1}, the drafter knows {vocabulary} tokens; "
                         f"give a node at most {vocabulary} children")
    if count == 1:
        return best_token(scores)[:, None]
    top = scores.topk(min(count + 1, vocabulary), dim=-1)
    # topk promises no order among equals, so rows with a tie are sorted in full.
    tied = (top.values[:, 1:] == top.values[:, :-1]).any(-1)
    best = top.indices[:, :count]
    if tied.any():
        best[tied] = scores[tied].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return best


def independent(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` independent samples of probs float[V]: each distinct token as (place of its first draw, token, count)."""
    drawn = [draws.categorical(probs) for _ in range(count)]
    return [(drawn.index(token), token, drawn.count(token)) for token in dict.fromkeys(drawn)]


def distinct(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` samples of probs float[V] without replacement, as (place, token, 1) in draw order, at most V of them.

    Where no mass is left the rest is drawn uniformly from the tokens not yet drawn, as Sequoia's rule supposes.
    """
    tokens: list[int] = []
    left = probs
    for _ in range(min(count, probs.shape[-1])):
        tokens.append(draws.categorical(left))
        left = without(left, tokens)
    return [(place, token, 1) for place, token in enumerate(tokens)]


SAMPLERS = {"iid": independent, "without_replacement": distinct}


def check_proposal(proposal: str, temperature: float) -> None:
    """ValueError for an unknown proposal, or for samples without a temperature above 0."""
    if proposal != "top_k" and proposal not in SAMPLERS:
        raise ValueError(f"proposal is {proposal!r}; choose one of top_k, {', '.join(SAMPLERS)}")
    if proposal != "top_k" and temperature <= 0:
        raise ValueError(f"temperature is {temperature} for proposal {proposal!r}; samples need more than 0")


class Filling:
    """B copies of a shape, filled a level at a time; a slot is a node of the shape, which may stay empty.

    With samples a slot stays empty where a sibling before it drew its token, and so do the slots below it. keep_probs:
    whether "top_k" drafts carry the distributions too, which rules do not need. output: the output layer that made the
    logits, where they are those of some tokens alone.
    """

    def __init__(self, shape: Tree, roots: Sequence[int], proposal: str, temperature: float, keep_probs: bool = False,
                 output: ReducedOutput | None = None):
        self.shape, self.proposal, self.temperature, self.output = shape, proposal, temperature, output
        self.keep_probs = keep_probs or proposal != "top_k"
        self.tokens = torch.zeros(len(roots), shape.size, dtype=torch.long)  # [B, m]
        self.tokens[:, ROOT] = torch.tensor(roots)
        self.probs: list[dict[int, Tensor]] = [{} for _ in roots]  # slot -> float[V] that its children came from
        self.counts: list[dict[int, int]] = [{ROOT: 1} for _ in roots]  # filled slot -> times that its token was drawn

    def grow(self, slots: Sequence[int], logits: Tensor, draws: Draws) -> None:
        """Gives these slots their children, from logits [B, len(slots), V], or [B, len(slots), K] with an `output`."""
        if self.keep_probs:
            warped = warp(logits, self.temperature)
            warped = warped if self.output is None else self.output.spread(warped)  # samples are drawn from all of it
            for row, probs in enumerate(self.probs):
                probs.update((slot, warped[row, index]) for index, slot in enumerate(slots)
                             if self.proposal == "top_k" or slot in self.counts[row])
        if self.proposal == "top_k":
            below = children(self.shape, tuple(slots))
            best = top_tokens(logits.flatten(0, 1), below.most).reshape(len(logits), -1)
            best = best if self.output is None else self.output.tokens[best]
            self.tokens[:, below.slots] = best.cpu()[:, below.best]
            return
        for row in range(len(self.tokens)):
            for slot in slots:
                if slot in self.counts[row]:
                    self._sample(row, slot, draws)

    def drafts(self) -> tuple[list[Draft], list[list[int]]]:
        """The drafts, and for each the slot of every node."""
        pairs = [self._draft(row) for row in range(len(self.tokens))]
        return [draft for draft, _ in pairs], [slots for _, slots in pairs]

    def _sample(self, row: int, slot: int, draws: Draws) -> None:
        below = self.shape.children(slot)
        for place, token, count in SAMPLERS[self.proposal](self.probs[row][slot], len(below), draws):
            self.tokens[row, below[place]] = token
            self.counts[row][below[place]] = count

    def _draft(self, row: int) -> tuple[Draft, list[int]]:
        if self.proposal == "top_k":
            slots = list(range(self.shape.size))
            return Draft(self.shape, self.tokens[row], "top_k", self._probs(row, slots)), slots
        slots = sorted(self.counts[row])
        node = {slot: index for index, slot in enumerate(slots)}
        above = [int(self.shape.parents[slot]) for slot in slots[1:]]
        place = [self.shape.children(parent).index(slot) for parent, slot in zip(above, slots[1:])]
        tree = Tree([-1] + [node[parent] for parent in above], [0] + place)  # rank: when a token was first drawn
        counts = torch.tensor([self.counts[row][slot] for slot in slots])
        return Draft(tree, self.tokens[row, slots], self.proposal, self._probs(row, slots), counts), slots

    def _probs(self, row: int, slots: list[int]) -> Tensor | None:
        if not self.probs[row]:
            return None if self.proposal == "top_k" else torch.zeros(len(slots), 1)  # a root alone: nothing was drawn
        like = next(iter(self.probs[row].values()))
        probs = like.new_zeros(len(slots), len(like))
        for index, slot in enumerate(slots):
            if slot in self.probs[row]:
                probs[index] = self.probs[row][slot]
        return probs
