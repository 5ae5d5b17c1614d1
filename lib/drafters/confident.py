"""A language model that stops drafting where it is no longer sure (transformers' assistant_confidence_threshold)."""

from typing import Sequence

from lib.drafters import first_levels
from lib.drafters.fill_plan import plan
from lib.drafters.filling import Filling
from lib.drafters.language_model import LanguageModelDrafter
from lib.trees.growth.candidates import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


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

    def _fill(self, shape: Tree, draws: Draws) -> tuple[list[Draft], list[dict[int, int]]]:
        """The shape's first levels, for every row as many as the model is sure of and one more."""
        roots, planned = [tail[-1] for tail in self.tails], plan(shape)
        filling = Filling(shape, roots, "top_k", self.temperature, keep_probs=True)
        if shape.budget:
            filling.grow([ROOT], self._forward_tails(shape.max_depth), draws)
        depths = [min(1, shape.max_depth)] * len(roots)
        for depth, level in enumerate(planned.levels, start=1):
            sure = [depths[row] == depth and self._sure(filling, row, level.nodes) for row in range(len(roots))]
            if not any(sure):
                break
            filling.grow(level.nodes, self._forward_planned(filling, level), draws)
            depths = [depth + 1 if going else stopped for going, stopped in zip(sure, depths)]
        self.levels = depths
        found = [first_levels.cut(draft, own) for draft, own in zip(filling.drafts()[0], depths)]
        forwarded = {slot: place for slot, place in planned.place.items() if shape.depth[slot] < max(depths)}
        return ([draft for draft, _ in found],
                [{node: forwarded[slot] for node, slot in enumerate(slots) if slot in forwarded} for _, slots in found])

    def _grow(self, rule: Growth) -> tuple[list[Draft], list[dict[int, int]]]:
        raise ValueError(f"{rule.name!r} decides itself where a tree ends, as the threshold does; give a static shape, "
                         "or the rule to a drafter of kind 'top_k'")

    def _sure(self, filling: Filling, row: int, nodes: Sequence[int]) -> bool:
        """Whether one of these nodes' tokens has, behind its parent, the threshold's probability."""
        parents = filling.shape.parents
        return any(filling.probs[row][int(parents[node])][filling.tokens[row, node]] >= self.threshold
                   for node in nodes)
