"""What a drafter proposes in a round, and where a rule's randomness comes from."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lib.tree import Tree

PROPOSALS = ("top_k", "iid", "without_replacement")


@dataclass(frozen=True)
class Draft:
    """A tree with its tokens, and how they were chosen.

    tokens int64[m], the root's first. proposal: "top_k" (children by probability: one-hot), "iid" (independent samples) or
    "without_replacement"; the tree's rank is the order of probability, or for samples the order of drawing. probs
    float[m, V]: row u is the drafter's distribution that the children of u were drawn from (rows of leaves are unused; may
    be None for "top_k"). counts int64[m]: how often a node's token was drawn, for "iid", whose repeats are one node.
    """

    tree: Tree
    tokens: Tensor
    proposal: str
    probs: Tensor | None = None
    counts: Tensor | None = None

    def __post_init__(self):
        if self.proposal not in PROPOSALS:
            raise ValueError(f"proposal is {self.proposal!r}; choose one of {', '.join(PROPOSALS)}")
        if self.tokens.shape != (self.tree.size,):
            raise ValueError(f"tokens are {tuple(self.tokens.shape)} for a tree of {self.tree.size} nodes; give one a node, the root's first")
        if self.proposal != "top_k" and self.probs is None:
            raise ValueError(f"proposal {self.proposal!r} comes without probs; sampled children need the distribution they were drawn from")


class Draws(Protocol):
    """Randomness as the rules and drafters ask for it."""

    def uniform(self):
        """A number in [0, 1), comparable with <= and <."""

    def categorical(self, probs: Tensor) -> int:
        """An index of probs float[V], which need not sum to one, in proportion to it."""


class GeneratorDraws:
    """Draws from a torch.Generator; None is allowed where nothing random is asked for."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator

    def uniform(self) -> float:
        """A float64 in [0, 1)."""
        return torch.rand((), dtype=torch.float64, generator=self.generator, device=self._device()).item()

    def categorical(self, probs: Tensor) -> int:
        """By inversion, with one uniform number."""
        cumulative = probs.to(torch.float64).cumsum(-1)
        place = torch.searchsorted(cumulative, cumulative[-1] * self.uniform(), right=True)
        return min(int(place), probs.shape[-1] - 1)

    def _device(self) -> torch.device | str:
        return self.generator.device if self.generator is not None else "cpu"
