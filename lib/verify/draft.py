"""What a rule is given: a draft, and draws."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Callable, Collection, Iterable, Protocol

import torch
from torch import Tensor

from lib.trees.tree import ROOT, Tree
from lib.verify.masses import Masses

PROPOSALS = ("top_k", "iid", "without_replacement")


@dataclass(frozen=True)
class Draft:
    """A tree with its tokens, and how they were chosen.

    tokens int64[m], the root's first. proposal: "top_k" (children by probability: one-hot), "iid" (independent
    samples) or "without_replacement"; the tree's rank is the order of probability, or for samples the order of
    drawing. probs float[m, V]: row u is the distribution that the children of u were drawn from, after the drafter's
    own temperature (rows of leaves are unused); for "top_k" the drafter's confidence, which only lossy rules ask for,
    or None. counts int64[m]: how often a node's token was drawn, for "iid", whose repeats are one node; None: each
    once.
    """

    tree: Tree
    tokens: Tensor
    proposal: str
    probs: Tensor | None = None
    counts: Tensor | None = None

    def __post_init__(self):
        size = self.tree.size
        if self.proposal not in PROPOSALS:
            raise ValueError(f"proposal is {self.proposal!r}; choose one of {', '.join(PROPOSALS)}")
        if self.tokens.shape != (size,):
            raise ValueError(
                f"tokens are {tuple(self.tokens.shape)} for a tree of {size} nodes; give one a node, the root's first"
            )
        if self.proposal != "top_k" and self.probs is None:
            raise ValueError(
                f"proposal {self.proposal!r} comes without probs; sampled children need the distribution "
                "that they were drawn from"
            )
        if self.probs is not None and (self.probs.dim() != 2 or len(self.probs) != size):
            raise ValueError(
                f"probs are {tuple(self.probs.shape)} for a tree of {size} nodes; give one row a node: [{size}, V]"
            )
        if self.counts is not None and self.counts.shape != (size,):
            raise ValueError(
                f"counts are {tuple(self.counts.shape)} for a tree of {size} nodes; give one a node, 1 for the root"
            )

    @cached_property
    def token_list(self) -> list[int]:
        """`tokens` on the host, brought there once."""
        return self.tokens.tolist()

    def tokens_of(self, nodes: Iterable[int]) -> list[int]:
        """The tokens of these nodes, in this order."""
        return [self.token_list[node] for node in nodes]

    def times_drawn(self) -> list[int]:
        """How often each node's token was drawn: its count, or once."""
        return [1] * self.tree.size if self.counts is None else self.counts.tolist()

    def along(self, tokens: Iterable[int]) -> list[int]:
        """The nodes below the root along these tokens, as far as the tree has them."""
        held, node, path = self.token_list, ROOT, []
        for token in tokens:
            node = next((child for child in self.tree.children(node) if held[child] == token), None)
            if node is None:
                break
            path.append(node)
        return path

    def part(self, tree: Tree, nodes: list[int]) -> "Draft":
        """The draft of some of its nodes, which are a tree with its root: `tree`, whose node i is nodes[i]."""
        rest = {name: None if rows is None else rows[nodes]
                for name, rows in (("tokens", self.tokens), ("probs", self.probs), ("counts", self.counts))}
        return replace(self, tree=tree, **rest)

    def proposals(self) -> Tensor:
        """`probs`, for a rule that compares with them. ValueError where the drafter gave none."""
        if self.probs is None:
            raise ValueError(
                f"the draft is {self.proposal!r} and comes without probs; this rule compares with the drafter's "
                "probabilities: let the drafter give them"
            )
        return self.probs

    def entries(self, probs: Tensor) -> Callable[[int], float]:
        """child -> what probs float[m, V] give its token behind its parent; nothing else of them is read.

        From a CPU one by one, as they are asked for; from other devices all in one transfer.
        """
        parents, tokens = self.tree.parents, self.token_list
        if probs.device.type == "cpu" and probs.dtype in (torch.float32, torch.float64):
            held = probs.numpy(force=True)
            return lambda child: held.item(parents[child], tokens[child])
        drafted = probs[torch.tensor(parents[1:], device=probs.device), self.tokens[1:].to(probs.device)]
        return [math.nan, *drafted.tolist()].__getitem__


class Draws(Protocol):
    """Randomness as the rules and drafters ask for it, one number at a time, so that it can be drawn or enumerated."""

    def uniform(self):
        """A number in [0, 1), comparable with <= and <."""

    def categorical(
        self, probs: Tensor | Masses, *, without: Collection[int] = (), otherwise: Tensor | None = None
    ) -> int:
        """An index of probs float[V], which need not sum to one, in proportion to it, but none of `without`; where
        that leaves no mass, an index of `otherwise` float[V]."""
