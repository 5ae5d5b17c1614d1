"""A static shape while it is filled: tokens by slot, what was drawn where, and the drafts that come of it."""

from typing import Sequence

import torch
from torch import Tensor

from lib.drafters import proposals
from lib.drafters.fill_plan import children
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.warping import warp


class Filling:
    """B copies of a shape, filled a level at a time; a slot is a node of the shape, which may stay empty.

    With samples a slot stays empty where a sibling drew its token before it; so do the slots below it. `keep_probs`
    asks for the distributions of "top_k" drafts too, where rules do not need them.
    """

    def __init__(self, shape: Tree, roots: Sequence[int], proposal: str, temperature: float, keep_probs: bool = False):
        self.shape, self.proposal, self.temperature = shape, proposal, temperature
        self.keep_probs = keep_probs or proposal != "top_k"
        self.tokens = torch.zeros(len(roots), shape.size, dtype=torch.long)  # [B, m]
        self.tokens[:, ROOT] = torch.tensor(roots)
        self.probs: list[dict[int, Tensor]] = [{} for _ in roots]  # slot -> float[V] that its children came from
        self.counts: list[dict[int, int]] = [{ROOT: 1} for _ in roots]  # filled slot -> times that its token was drawn

    def grow(self, slots: Sequence[int], logits: Tensor, draws: Draws) -> None:
        """Gives these slots their children, from logits [B, len(slots), V]."""
        if self.keep_probs:
            warped = warp(logits, self.temperature)
            for row, known in enumerate(self.probs):
                known.update((slot, warped[row, index]) for index, slot in enumerate(slots) if self._filled(row, slot))
        if self.proposal == "top_k":
            self._best(slots, logits)
            return
        for row in range(len(self.tokens)):
            for slot in slots:
                if self._filled(row, slot):
                    self._sample(row, slot, draws)

    def drafts(self) -> tuple[list[Draft], list[list[int]]]:
        """The drafts, and for each the slot of every node."""
        pairs = [self._draft(row) for row in range(len(self.tokens))]
        return [draft for draft, _ in pairs], [slots for _, slots in pairs]

    def _filled(self, row: int, slot: int) -> bool:
        return self.proposal == "top_k" or slot in self.counts[row]

    def _best(self, slots: Sequence[int], logits: Tensor) -> None:
        below = children(self.shape, tuple(slots))
        best = proposals.top_tokens(logits.flatten(0, 1), below.most).reshape(len(logits), -1).cpu()
        self.tokens[:, below.slots] = best[:, below.best]

    def _sample(self, row: int, slot: int, draws: Draws) -> None:
        children = self.shape.children(slot)
        drawn = proposals.SAMPLERS[self.proposal](self.probs[row][slot], len(children), draws)
        for place, token, count in drawn:
            self.tokens[row, children[place]] = token
            self.counts[row][children[place]] = count

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
