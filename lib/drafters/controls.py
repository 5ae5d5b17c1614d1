"""Two controls: a drafter that knows nothing, and one that knows what the target will say."""

from typing import Sequence

import torch
from torch import Tensor

from lib.drafters.protocol import static
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class RandomDrafter:
    """Uniform random tokens, siblings distinct: what a tree of a shape gets for nothing."""

    calls = 0
    cache_bytes = 0

    def __init__(self, vocabulary: int, generator: torch.Generator):
        self.vocabulary, self.generator = vocabulary, generator

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch; what the prompts say does not matter."""
        self.roots = [0] * len(prompts)

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The shape filled at random."""
        return [Draft(shape, self._random(shape, root), "top_k") for root in self.roots]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """The bonus tokens become the roots."""
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.roots = [self.roots[row] for row in rows]

    def _random(self, shape: Tree, root: int) -> Tensor:
        tokens = torch.full((static(shape).size,), root)
        for node in range(shape.size):
            children = list(shape.children(node))
            if len(children) > self.vocabulary:
                raise ValueError(f"node {node} has {len(children)} children, the vocabulary {self.vocabulary} tokens; "
                                 "give a node no more children than that")
            if children:
                tokens[children] = torch.tensor(self._distinct(len(children)))
        return tokens

    def _distinct(self, count: int) -> list[int]:
        found: dict[int, None] = {}
        while len(found) < count:
            more = torch.randint(self.vocabulary, (count - len(found),), generator=self.generator)
            found.update(dict.fromkeys(more.tolist()))
        return list(found)


class OracleDrafter(RandomDrafter):
    """Given what the target says behind each prompt, puts it on the path of favourites: the most that a shape can do.

    Beside that path, and where a continuation has ended, tokens are random.
    """

    def __init__(self, prompts: Sequence[Tensor], continuations: Sequence[Sequence[int]], vocabulary: int,
                 generator: torch.Generator):
        super().__init__(vocabulary, generator)
        self.known = {tuple(prompt.tolist()): list(said) for prompt, said in zip(prompts, continuations, strict=True)}

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Finds each prompt's continuation."""
        super().start(prompts)
        missing = [row for row, prompt in enumerate(prompts) if tuple(prompt.tolist()) not in self.known]
        if missing:
            raise ValueError(f"the oracle has no continuation of prompts {missing} of the batch; give it one for each")
        self.ahead = [self.known[tuple(prompt.tolist())] for prompt in prompts]

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The continuation down the favourites, anything else beside it."""
        return [Draft(shape, self._along(self._random(shape, root), shape, ahead), "top_k")
                for root, ahead in zip(self.roots, self.ahead)]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Goes on behind what was kept."""
        super().commit(accepted, bonus)
        self.ahead = [ahead[len(nodes) + 1 :] for ahead, nodes in zip(self.ahead, accepted)]

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        super().select(rows)
        self.ahead = [self.ahead[row] for row in rows]

    def _along(self, tokens: Tensor, shape: Tree, ahead: list[int]) -> Tensor:
        node = ROOT
        for said in ahead:
            children = list(shape.children(node))
            if not children:
                break
            node = children[0]
            twins = [child for child in children if tokens[child] == said]
            tokens[twins] = tokens[node].clone()  # siblings stay distinct
            tokens[node] = said
        return tokens
