"""Controls: drafters of random tokens, of excerpts of text, and one that knows the target's continuation."""

import random
from typing import Mapping, Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import Drafter, favourites, static
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class RandomDrafter(Drafter):
    """Uniform random tokens, siblings distinct: the acceptance that a shape has by chance."""

    def __init__(self, vocabulary: int, generator: torch.Generator):
        self.vocabulary = vocabulary
        self.random = random.Random(int(torch.randint(2**62, (), generator=generator)))

    @classmethod
    def of(cls, pair, *, generator: torch.Generator) -> "RandomDrafter":
        """For the vocabulary of the pair's target."""
        return cls(pair.target.config.get_text_config().vocab_size, generator)

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        return [Draft(shape, self._tokens(static(shape), root), "top_k") for root in self.roots]

    def _tokens(self, shape: Tree, root: int) -> Tensor:
        tokens = torch.full((shape.size,), root)
        for node in range(shape.size):
            children = list(shape.children(node))
            tokens[children] = torch.tensor(self.random.sample(range(self.vocabulary), len(children))).long()
        return tokens


class ExcerptDrafter(RandomDrafter):
    """Excerpts of texts from random places, with which costs are timed: a mixture of experts sends random tokens to
    more of its experts than text. First children go on with their excerpt; the others begin one. Siblings that would be
    equal stay random.
    """

    def __init__(self, texts: Sequence[Tensor], vocabulary: int, generator: torch.Generator):
        super().__init__(vocabulary, generator)
        self.text = torch.cat([text.cpu() for text in texts])

    def _tokens(self, shape: Tree, root: int) -> Tensor:
        tokens = super()._tokens(shape, root)
        positions = torch.tensor(self.random.choices(range(len(self.text)), k=shape.size))
        for node in range(shape.size):
            children = list(shape.children(node))
            positions[children[:1]] = (positions[node] + 1) % len(self.text)
            excerpts = self.text[positions[children]]
            if len(excerpts.unique()) == len(children):
                tokens[children] = excerpts
        return tokens


class OracleDrafter(RandomDrafter):
    """Puts the target's own continuation of each prompt on the path of first children: the most a shape can reach.

    Off that path, and where a continuation has ended, tokens are random.
    """

    @classmethod
    def of(cls, pair, *, continuations: Mapping[tuple[int, ...], Sequence[int]],
           generator: torch.Generator) -> "OracleDrafter":
        """For the vocabulary of the pair's target; continuations: by the tokens of the prompts."""
        drafter = super().of(pair, generator=generator)
        drafter.continuations = continuations
        return drafter

    def start(self, prompts: Sequence[Tensor]) -> None:
        super().start(prompts)
        self.ahead = [self.continuations[tuple(prompt.tolist())] for prompt in prompts]

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        drafts = super().propose(shape, draws)
        for draft, ahead in zip(drafts, self.ahead):
            tokens = draft.tokens
            for node, token in zip(favourites(shape)[1:], ahead):
                siblings = list(shape.children(shape.parents[node]))
                tokens[siblings] = tokens[siblings].where(tokens[siblings] != token, tokens[node])  # stay distinct
                tokens[node] = token
        return drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None, drafts=None) -> None:
        super().commit(accepted, bonus)
        self.ahead = [ahead[len(nodes) + 1 :] for ahead, nodes in zip(self.ahead, accepted)]

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.ahead = [self.ahead[row] for row in rows]
