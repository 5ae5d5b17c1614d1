"""The oracle of the language-model drafter: every node's distribution from a forward of its whole text, no cache."""

from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters import proposals
from lib.drafters.growing import by_node
from lib.trees.growth.candidates import Candidates, Growth, grow
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.warping import warp


class PlainDrafter:
    """Drafts as `LanguageModelDrafter` does, slowly and plainly: one causal forward for each node with children.

    Samples of a node come right after its forward, nodes in the order of depth: for one row, the same draws give the
    same draft as the fast drafter's.
    """

    cache_bytes = 0

    def __init__(self, model, *, proposal: str = "top_k", temperature: float = 1.0):
        self.model, self.proposal, self.temperature, self.calls = model, proposal, temperature, 0

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the prompts int64[T]."""
        self.texts = [prompt.tolist() for prompt in prompts]
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """The shape filled, or the tree grown, node by node."""
        fill = self._best if self.proposal == "top_k" else self._sampled
        grown = not isinstance(shape, Tree)
        self.drafts = [self._grown(text, shape) if grown else fill(text, shape, draws) for text in self.texts]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Appends what was kept to the texts."""
        for row, (nodes, token) in enumerate(zip(accepted, bonus)):
            self.texts[row] += [*self.drafts[row].tokens_of(nodes), token] if nodes else [token]

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.texts = [self.texts[row] for row in rows]

    @torch.no_grad()
    def logits(self, text: list[int]) -> Tensor:
        """What the model says behind a text, float[V]."""
        self.calls += 1
        return self.model(torch.tensor([text], device=self.model.device)).logits[0, -1].cpu()

    def _best(self, text: list[int], shape: Tree, draws: Draws) -> Draft:
        tokens = torch.tensor([text[-1]] + [0] * shape.budget)
        for node in range(shape.size):
            children = list(shape.children(node))
            if children:
                path = text + tokens[list(shape.path(node))[1:]].tolist()
                best = proposals.top_tokens(self.logits(path)[None], int(shape.rank[children].max()) + 1)[0]
                tokens[children] = best[torch.tensor(shape.rank[children])]
        return Draft(shape, tokens, "top_k")

    def _grown(self, text: list[int], rule: Growth) -> Draft:
        path = [()]  # by candidate: the tokens that lead to it

        def children(candidates: Candidates, nodes) -> np.ndarray:
            found = []
            for node in nodes:
                probs = warp(self.logits([*text, *path[node]]), self.temperature)
                best = proposals.top_tokens(probs[None], min(rule.width, len(probs)))[0].tolist()
                path.extend((*path[node], token) for token in best)
                found.append(probs[best].double().numpy())
            return np.stack(found)

        grown = grow(by_node(rule), children)
        return Draft(grown.tree, torch.tensor([text[-1]] + [path[node][-1] for node in grown.nodes[1:]]), "top_k")

    def _sampled(self, text: list[int], shape: Tree, draws: Draws) -> Draft:
        path, counts, probs = {ROOT: ()}, {ROOT: 1}, {}  # by slot; a slot without a path stays empty
        for slot in sorted(range(shape.size), key=lambda slot: shape.depth[slot]):
            children = shape.children(slot)
            if children and slot in path:
                probs[slot] = warp(self.logits([*text, *path[slot]]), self.temperature)
                for place, token, count in proposals.SAMPLERS[self.proposal](probs[slot], len(children), draws):
                    path[children[place]], counts[children[place]] = (*path[slot], token), count
        slots = sorted(path)
        places = [shape.children(shape.parents[slot]).index(slot) for slot in slots[1:]]
        tree = Tree([-1] + [slots.index(shape.parents[slot]) for slot in slots[1:]], [0] + places)
        empty = torch.zeros(len(probs[ROOT]) if probs else 1)
        return Draft(tree, torch.tensor([text[-1]] + [path[slot][-1] for slot in slots[1:]]), self.proposal,
                     torch.stack([probs.get(slot, empty).double() for slot in slots]),
                     torch.tensor([counts[slot] for slot in slots]))
