"""A language model that stops drafting where it is no longer sure (transformers' assistant_confidence_threshold)."""

from typing import Sequence

import torch

from lib.drafters import first_levels
from lib.drafters.filling import Filling
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.slots import plan
from lib.tree import ROOT, Tree
from lib.verify import Draft, Draws


class ConfidentDrafter(LanguageModelDrafter):
    """Fills a shape level by level, until the best of a level's tokens has a probability below the threshold.

    That level is still proposed, as in transformers, where a chain ends with the first token below it. Each row stops
    for itself; the model forwards as long as one row goes on. Children are the most likely tokens; probabilities are
    the model's at `temperature`.
    """

    def __init__(self, model, *, threshold: float = 0.4, temperature: float = 1.0, vocabulary: int | None = None):
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability, 0 to 1")
        super().__init__(model, temperature=temperature, vocabulary=vocabulary, keep_probs=True)
        self.threshold = threshold

    @torch.no_grad()
    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The shape's first levels, for every row as many as the model is sure of and one more."""
        filling = Filling(shape, [tail[-1] for tail in self.tails], "top_k", self.temperature, keep_probs=True)
        if shape.budget:
            filling.grow([ROOT], self._forward_tails(shape.max_depth), draws)
        depths = [min(1, shape.max_depth)] * len(self.tails)
        for depth, level in enumerate(plan(shape).levels, start=1):
            sure = [depths[row] == depth and self._sure(filling, row, level.nodes) for row in range(len(depths))]
            if not any(sure):
                break
            tokens, sees = filling.tokens[:, list(level.nodes)], level.sees.expand(len(depths), -1, -1)
            filling.grow(level.nodes, self._forward_level(tokens, depth, sees), draws)
            depths = [depth + 1 if going else stopped for going, stopped in zip(sure, depths)]
        whole, _ = filling.drafts()
        found = [first_levels.cut(draft, own) for draft, own in zip(whole, depths)]
        place = {slot: at for slot, at in plan(shape).place.items() if shape.depth[slot] < max(depths)}  # forwarded
        self.places = [{node: place[slot] for node, slot in enumerate(slots) if slot in place} for _, slots in found]
        self.drafts, self.levels = [draft for draft, _ in found], depths
        return self.drafts

    def _sure(self, filling: Filling, row: int, nodes: Sequence[int]) -> bool:
        """Whether one of these nodes' tokens has, behind its parent, the threshold's probability."""
        parents = filling.shape.parents
        return any(filling.probs[row][int(parents[node])][filling.tokens[row, node]] >= self.threshold
                   for node in nodes)
