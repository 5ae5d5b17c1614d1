"""The oracle of drafters: each node's distribution from a forward pass of its whole text, of a language model here."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters.drafter import TextDrafter
from lib.drafters.filling import SAMPLERS, check_proposal, top_tokens
from lib.trees.growth import Candidates, Growth, grow
from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.warping import warp

Logits = Callable[[list[int], Sequence[int]], Tensor]  # float[V] after a committed text and a drafted path


def filled(logits: Logits, text: list[int], shape: Tree) -> Draft:
    """A static shape, filled with the best tokens after a committed text."""
    tokens = torch.tensor([text[-1]] + [0] * shape.budget)
    for node in range(shape.size):
        children = list(shape.children(node))
        if children:
            path = tokens[list(shape.path(node))[1:]].tolist()
            best = top_tokens(logits(text, path)[None], int(shape.rank[children].max()) + 1)[0]
            tokens[children] = best[torch.tensor(shape.rank[children])]
    return Draft(shape, tokens, "top_k")


def grown(logits: Logits, text: list[int], rule: Growth, temperature: float = 1.0) -> Draft:
    """The tree that a growth rule makes after a committed text."""
    path = [()]  # by candidate: the tokens that lead to it

    def children(candidates: Candidates, nodes) -> np.ndarray:
        rows = []
        for node in nodes:
            probs = warp(logits(text, path[node]), temperature)
            best = top_tokens(probs[None], min(rule.width, len(probs)))[0].tolist()
            path.extend((*path[node], token) for token in best)
            rows.append(probs[best].double().numpy())
        return np.stack(rows)

    made = grow(rule, children)
    tokens = torch.tensor([text[-1]] + [path[node][-1] for node in made.nodes[1:]])
    return Draft(made.tree, tokens, "top_k", reach=made.reach)


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
        if not isinstance(shape, Tree):
            self.drafts = [grown(self.logits, text, shape, self.temperature) for text in self.texts]
        elif self.proposal == "top_k":
            self.drafts = [filled(self.logits, text, shape) for text in self.texts]
        else:
            self.drafts = [self._sampled(text, shape, draws) for text in self.texts]
        return self.drafts

    @torch.no_grad()
    def logits(self, text: list[int], path: Sequence[int] = ()) -> Tensor:
        """The model's logits after a text and a drafted path, float[V]."""
        self.calls += 1
        return self.model(torch.tensor([[*text, *path]], device=self.model.device)).logits[0, -1].cpu()

    def _sampled(self, text: list[int], shape: Tree, draws: Draws) -> Draft:
        path, counts, probs = {ROOT: ()}, {ROOT: 1}, {}  # by slot; a slot without a path stays empty
        for slot in sorted(range(shape.size), key=lambda slot: shape.depth[slot]):
            children = shape.children(slot)
            if children and slot in path:
                probs[slot] = warp(self.logits(text, path[slot]), self.temperature)
                for draw, token, count in SAMPLERS[self.proposal](probs[slot], len(children), draws):
                    path[children[draw]], counts[children[draw]] = (*path[slot], token), count
        slots = sorted(path)
        tree = Tree([NO_PARENT] + [slots.index(shape.parents[slot]) for slot in slots[1:]], shape.rank[slots])
        empty = torch.zeros(len(probs[ROOT]) if probs else 1)
        return Draft(tree, torch.tensor([text[-1]] + [path[slot][-1] for slot in slots[1:]]), self.proposal,
                     torch.stack([probs.get(slot, empty).double() for slot in slots]),
                     torch.tensor([counts[slot] for slot in slots]))
