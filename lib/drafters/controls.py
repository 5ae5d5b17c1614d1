"""Two controls: a drafter that knows nothing, and one that knows what the target will say."""

from typing import Sequence

import torch
from torch import Tensor

from lib.tree import ROOT, Tree
from lib.verify import Draft, Draws


class _Control:
    """Fills a shape from the number of tokens generated so far; no model."""

    calls = 0
    cache_bytes = 0

    def __init__(self, vocabulary: int, generator: torch.Generator):
        self.vocabulary, self.generator = vocabulary, generator

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch; the prompts themselves do not matter."""
        self.rows = list(range(len(prompts)))
        self.written = [0] * len(prompts)
        self.roots = [0] * len(prompts)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Counts what was kept."""
        self.written = [count + len(nodes) + 1 for count, nodes in zip(self.written, accepted)]
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.rows, self.written, self.roots = ([values[row] for row in rows] for values in (self.rows, self.written, self.roots))

    def _random(self, shape: Tree, root: int) -> Tensor:
        tokens = torch.full((shape.size,), root)
        for node in range(shape.size):
            children = list(shape.children(node))
            tokens[children] = torch.randperm(self.vocabulary, generator=self.generator)[: len(children)]
        return tokens


class RandomDrafter(_Control):
    """Uniform random tokens, siblings distinct: what a tree of a shape gets for nothing."""

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The shape filled at random."""
        return [Draft(shape, self._random(shape, root), "top_k") for root in self.roots]


class OracleDrafter(_Control):
    """Given each prompt's continuation, puts it on the path of favourites: the most that a shape can do."""

    def __init__(self, continuations: Sequence[Sequence[int]], vocabulary: int, generator: torch.Generator):
        super().__init__(vocabulary, generator)
        self.continuations = continuations

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The continuation down the favourites, anything else beside it."""
        return [Draft(shape, self._known(shape, *state), "top_k") for state in zip(self.rows, self.written, self.roots)]

    def _known(self, shape: Tree, row: int, written: int, root: int) -> Tensor:
        tokens = self._random(shape, root)
        node = ROOT
        for said in self.continuations[row][written:]:
            children = list(shape.children(node))
            if not children:
                break
            said_elsewhere = [child for child in children if tokens[child] == said]
            for twin in said_elsewhere:  # siblings stay distinct
                tokens[twin] = tokens[children[0]]
            tokens[children[0]] = said
            node = children[0]
        return tokens
