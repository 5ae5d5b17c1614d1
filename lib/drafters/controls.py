"""Controls: drafters of random tokens, and of excerpts of text."""

import random
from typing import Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import TextDrafter, static
from lib.trees.tree import Tree
from lib.verify.draft import Draft

LATEST = 8  # tokens of a text that decide a random draft


class RandomDrafter(TextDrafter):
    """Uniform random tokens, siblings distinct: the acceptance that a shape has by chance. The generator and the text
    decide them, so that replay has the rounds of live decoding.
    """

    def __init__(self, vocabulary: int, generator: torch.Generator):
        self.vocabulary = vocabulary
        self.seed, self.random = int(torch.randint(2**62, (), generator=generator)), random.Random()

    @classmethod
    def of(cls, pair, *, generator: torch.Generator) -> "RandomDrafter":
        """For the vocabulary of the pair's target."""
        return cls(pair.target.config.get_text_config().vocab_size, generator)

    def draft(self, text: list[int], shape: Tree) -> Draft:
        self.random.seed(repr((self.seed, len(text), text[-LATEST:])))
        return Draft(shape, self._tokens(static(shape), text[-1]), "top_k")

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
        self.excerpts = torch.cat([text.cpu() for text in texts])

    def _tokens(self, shape: Tree, root: int) -> Tensor:
        tokens = super()._tokens(shape, root)
        positions = torch.tensor(self.random.choices(range(len(self.excerpts)), k=shape.size))
        for node in range(shape.size):
            children = list(shape.children(node))
            positions[children[:1]] = (positions[node] + 1) % len(self.excerpts)
            siblings = self.excerpts[positions[children]]
            if len(siblings.unique()) == len(children):
                tokens[children] = siblings
        return tokens
