"""A language model that stops drafting where its confidence is low (transformers' assistant_confidence_threshold)."""

from typing import Sequence

from lib.drafters.drafter import first_levels
from lib.drafters.fill_plan import plan
from lib.drafters.filling import Filling
from lib.drafters.language_model import LanguageModelDrafter
from lib.trees.growth.candidates import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class ConfidentDrafter(LanguageModelDrafter):
    """Fills a shape level by level, until the best of a level's tokens has a probability below the threshold.

    That level is still proposed, as in transformers, where a chain ends with the first token below the threshold. Each
    row stops on its own; the model runs as long as one row continues. Children are the most likely tokens;
    probabilities are the model's at `temperature`.
    """

    option = "threshold"

    def __init__(self, model, *, threshold: float = 0.4, temperature: float = 1.0):
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability, 0 to 1")
        super().__init__(model, temperature=temperature, keep_probs=True)
        self.threshold = threshold

    def _fill(self, shape: Tree, draws: Draws) -> tuple[list[Draft], list[dict[int, int]]]:
        roots, planned = [tail[-1] for tail in self.tails], plan(shape)
        filling = Filling(shape, roots, "top_k", self.temperature, keep_probs=True, output=self.output)
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
        cut = [first_levels(draft, own) for draft, own in zip(filling.drafts()[0], depths)]
        forwarded = {slot: place for slot, place in planned.place.items() if shape.depth[slot] < max(depths)}
        return ([draft for draft, _ in cut],
                [{node: forwarded[slot] for node, slot in enumerate(slots) if slot in forwarded} for _, slots in cut])

    def _grow(self, rule: Growth) -> tuple[list[Draft], list[dict[int, int]]]:
        raise ValueError(f"{rule.name!r} decides itself where a tree ends, as the threshold does; give a static shape, "
                         "or the rule to a drafter of kind 'model'")

    def _sure(self, filling: Filling, row: int, nodes: Sequence[int]) -> bool:
        """Whether the token of one of these nodes reaches the threshold's probability after its parent."""
        parents = filling.shape.parents
        return any(filling.probs[row][int(parents[node])][filling.tokens[row, node]] >= self.threshold
                   for node in nodes)
