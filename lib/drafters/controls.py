"""Controls: drafters of random tokens, of excerpts of text, and one that knows the target's continuation."""

import random
from typing import Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import Drafter, static
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class RandomDrafter(Drafter):
    """Uniform random tokens, siblings distinct: the acceptance that a shape has by chance."""

    def __init__(self, vocabulary: int, generator: torch.Generator):
        self.vocabulary, self.generator = vocabulary, generator
        self.random = random.Random(int(torch.randint(2**62, (), generator=generator)))

    @classmethod
    def of(cls, pair, *, generator: torch.Generator) -> "RandomDrafter":
        """For the vocabulary of the pair's target."""
        return cls(pair.target.config.get_text_config().vocab_size, generator)

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """Tokens after each root."""
        return [Draft(shape, self._tokens(static(shape), root), "top_k") for root in self.roots]

    def _tokens(self, shape: Tree, root: int) -> Tensor:
        tokens = torch.full((shape.size,), root)
        for node in range(shape.size):
            children = list(shape.children(node))
            tokens[children] = self._distinct(len(children))
        return tokens

    def _distinct(self, count: int) -> Tensor:
        if count > self.vocabulary:
            raise ValueError(f"a node has {count} children, the vocabulary {self.vocabulary} tokens; give it fewer")
        return torch.tensor(self.random.sample(range(self.vocabulary), count), dtype=torch.long)


class ExcerptDrafter(RandomDrafter):
    """Excerpts of texts from random places, with which costs are timed: a mixture of experts sends random tokens to
    more of its experts than text. First children go on with their excerpt; the others begin one, and siblings differ.
    """

    def __init__(self, texts: Sequence[Tensor], vocabulary: int, generator: torch.Generator):
        super().__init__(vocabulary, generator)
        self.text = torch.cat([text.cpu() for text in texts])

    def _tokens(self, shape: Tree, root: int) -> Tensor:
        positions = torch.randint(len(self.text), (shape.size,), generator=self.generator)
        tokens = torch.full((shape.size,), root)
        for node in range(shape.size):
            children = list(shape.children(node))
            positions[children[:1]] = (positions[node] + 1) % len(self.text)
            tokens[children] = self.text[positions[children]]
            if len(set(tokens[children].tolist())) < len(children):
                tokens[children] = self._distinct(len(children))
        return tokens


class OracleDrafter(RandomDrafter):
    """Puts the target's own continuation of each prompt on the path of first children: the most a shape can reach.

    Off that path, and where a continuation has ended, tokens are random.
    """

    @classmethod
    def of(cls, pair, *, prompts: Sequence[Tensor], continuations: Sequence[Sequence[int]],
           generator: torch.Generator) -> "OracleDrafter":
        """For the vocabulary of the pair's target; continuations: one of each prompt."""
        drafter = super().of(pair, generator=generator)
        drafter.continuations = {tuple(prompt.tolist()): list(tokens)
                                 for prompt, tokens in zip(prompts, continuations, strict=True)}
        return drafter

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Looks up the continuations of the prompts. ValueError names those that have none."""
        super().start(prompts)
        self.ahead = [self.continuations.get(tuple(prompt.tolist())) for prompt in prompts]
        if missing := [row for row, ahead in enumerate(self.ahead) if ahead is None]:
            raise ValueError(f"the oracle has no continuation of prompts {missing} of the batch; give it one for each")

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The continuation on the path of first children, and random tokens off it."""
        drafts = super().propose(shape, draws)
        for draft, ahead in zip(drafts, self.ahead):
            tokens, node = draft.tokens, ROOT
            for token in ahead:
                if not (children := shape.children(node)):
                    break
                node = children[0]
                equal = [child for child in children if tokens[child] == token]
                tokens[equal] = tokens[node].clone()  # siblings stay distinct
                tokens[node] = token
        return drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Drops the kept tokens from the continuations."""
        super().commit(accepted, bonus)
        self.ahead = [ahead[len(nodes) + 1 :] for ahead, nodes in zip(self.ahead, accepted)]

    def select(self, rows: list[int]) -> None:
        """Keeps these rows and their continuations."""
        super().select(rows)
        self.ahead = [self.ahead[row] for row in rows]
