"""The oracle of the language-model drafter: each node's distribution from a forward pass of its whole text."""

import numpy as np
import torch
from torch import Tensor

from lib.drafters.drafter import TextDrafter
from lib.drafters.filling import SAMPLERS, check_proposal, top_tokens
from lib.trees.growth import Candidates, Growth, grow
from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.warping import warp


class PlainDrafter(TextDrafter):
    """Drafts as `LanguageModelDrafter` does, but with one causal forward pass for each node with children.

    A node's samples are drawn right after its forward pass, nodes in the order of depth: for one row, the same draws
    give the same draft as the fast drafter's.
    """

    def __init__(self, model, *, proposal: str = "top_k", temperature: float = 1.0):
        check_proposal(proposal, temperature)
        self.model, self.proposal, self.temperature, self.calls = model, proposal, temperature, 0

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row a static shape filled, or a tree grown by a rule."""
        fill = self._best if self.proposal == "top_k" else self._sampled
        grown = not isinstance(shape, Tree)
        self.drafts = [self._grown(text, shape) if grown else fill(text, shape, draws) for text in self.texts]
        return self.drafts

    @torch.no_grad()
    def logits(self, text: list[int]) -> Tensor:
        """The model's logits after a text, float[V]."""
        self.calls += 1
        return self.model(torch.tensor([text], device=self.model.device)).logits[0, -1].cpu()

    def _best(self, text: list[int], shape: Tree, draws: Draws) -> Draft:
        tokens = torch.tensor([text[-1]] + [0] * shape.budget)
        for node in range(shape.size):
            children = list(shape.children(node))
            if children:
                path = text + tokens[list(shape.path(node))[1:]].tolist()
                best = top_tokens(self.logits(path)[None], int(shape.rank[children].max()) + 1)[0]
                tokens[children] = best[torch.tensor(shape.rank[children])]
        return Draft(shape, tokens, "top_k")

    def _grown(self, text: list[int], rule: Growth) -> Draft:
        path = [()]  # by candidate: the tokens that lead to it

        def children(candidates: Candidates, nodes) -> np.ndarray:
            rows = []
            for node in nodes:
                probs = warp(self.logits([*text, *path[node]]), self.temperature)
                best = top_tokens(probs[None], min(rule.width, len(probs)))[0].tolist()
                path.extend((*path[node], token) for token in best)
                rows.append(probs[best].double().numpy())
            return np.stack(rows)

        grown = grow(rule, children)
        tokens = torch.tensor([text[-1]] + [path[node][-1] for node in grown.nodes[1:]])
        return Draft(grown.tree, tokens, "top_k", reach=grown.reach)

    def _sampled(self, text: list[int], shape: Tree, draws: Draws) -> Draft:
        path, counts, probs = {ROOT: ()}, {ROOT: 1}, {}  # by slot; a slot without a path stays empty
        for slot in sorted(range(shape.size), key=lambda slot: shape.depth[slot]):
            children = shape.children(slot)
            if children and slot in path:
                probs[slot] = warp(self.logits([*text, *path[slot]]), self.temperature)
                for draw, token, count in SAMPLERS[self.proposal](probs[slot], len(children), draws):
                    path[children[draw]], counts[children[draw]] = (*path[slot], token), count
        slots = sorted(path)
        tree = Tree([NO_PARENT] + [slots.index(shape.parents[slot]) for slot in slots[1:]], shape.rank[slots])
        empty = torch.zeros(len(probs[ROOT]) if probs else 1)
        return Draft(tree, torch.tensor([text[-1]] + [path[slot][-1] for slot in slots[1:]]), self.proposal,
                     torch.stack([probs.get(slot, empty).double() for slot in slots]),
                     torch.tensor([counts[slot] for slot in slots]))
