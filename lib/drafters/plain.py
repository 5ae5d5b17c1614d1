"""The oracle of the language-model drafter: every node's distribution from a forward of its whole text, without a cache."""

from typing import Sequence

import torch
from torch import Tensor

from lib.drafters import proposals
from lib.tree import Tree
from lib.verify import Draft, Draws


class PlainDrafter:
    """Drafts the model's most likely tokens, slowly and plainly: one causal forward a node with children."""

    cache_bytes = 0

    def __init__(self, model):
        self.model, self.calls = model, 0

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the prompts int64[T]."""
        self.texts = [prompt.tolist() for prompt in prompts]
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The shape filled node by node."""
        self.drafts = [self._fill(text, shape) for text in self.texts]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Appends what was kept to the texts."""
        for row, (nodes, token) in enumerate(zip(accepted, bonus)):
            self.texts[row] += (self.drafts[row].tokens[nodes].tolist() if nodes else []) + [token]

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.texts = [self.texts[row] for row in rows]

    def _fill(self, text: list[int], shape: Tree) -> Draft:
        tokens = torch.tensor([text[-1]] + [0] * shape.budget)
        for node in range(shape.size):
            children = list(shape.children(node))
            if children:
                path = text + tokens[list(shape.path(node))[1:]].tolist()
                logits = self.model(torch.tensor([path], device=self.model.device)).logits[:, -1].cpu()
                self.calls += 1
                best = proposals.top_tokens(logits, int(shape.rank[children].max()) + 1)[0]
                tokens[children] = best[torch.tensor(shape.rank[children])]
        return Draft(shape, tokens, "top_k")
