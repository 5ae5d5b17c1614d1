"""The input of a verification rule: a draft (a tree with tokens, and how they were chosen), and random draws."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Callable, Iterable, Protocol, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.trees.tree import NO_PARENT, ROOT, Tree

PROPOSALS = ("top_k", "iid", "without_replacement")
BLOCK = 512  # tokens per block: a block's probabilities are summed before any of them is read alone
AHEAD = 64  # numbers drawn per call of the generator: one call costs as much as many numbers


@dataclass(frozen=True)
class Draft:
    """A tree with its tokens, and how they were chosen.

    tokens: int64[m], the root's token first.
    proposal: "top_k" (the most probable children: one-hot), "iid" (independent samples) or "without_replacement". The
        tree's rank is the order of probability; for samples it is the order of drawing.
    probs: float[m, V]; row u is the distribution that the children of u were drawn from, after the drafter's own
        temperature (rows of leaves are not used). For "top_k" it is the drafter's confidence, which only lossy rules
        read, or None.
    counts: int64[m], how often each node's token was drawn: repeated "iid" samples share one node. None: once each.
    reach: float64[m] of a grown tree: the product of the drafter's probabilities along each node's path, which is never
        larger than the parent's. None for a static shape.
    shares: of merged "iid" samples of several drafters, in place of `probs`, for each of them (float[m, V], the
        distributions that it drew children from; int64[m], how often it drew each node).
    """

    tree: Tree
    tokens: Tensor
    proposal: str
    probs: Tensor | None = None
    counts: Tensor | None = None
    reach: np.ndarray | None = None
    shares: tuple[tuple[Tensor, Tensor], ...] = ()

    def __post_init__(self):
        size, probs, counts = self.tree.size, self.probs, self.counts
        remedy = f" for a tree of {size} nodes; give one"
        if self.proposal not in PROPOSALS:
            raise ValueError(f"proposal is {self.proposal!r}; choose one of {', '.join(PROPOSALS)}")
        if self.tokens.shape != (size,):
            raise ValueError(f"tokens have shape {tuple(self.tokens.shape)}{remedy} token per node, the root's first")
        if self.proposal != "top_k" and probs is None and not self.shares:
            raise ValueError(f"proposal {self.proposal!r} comes without probs; give the distributions that the "
                             "children were drawn from")
        if probs is not None and (probs.dim() != 2 or len(probs) != size):
            raise ValueError(f"probs have shape {tuple(probs.shape)}{remedy} row per node: [{size}, V]")
        if counts is not None and counts.shape != (size,):
            raise ValueError(f"counts have shape {tuple(counts.shape)}{remedy} count per node, 1 for the root")

    @cached_property
    def token_list(self) -> list[int]:
        """`tokens` on the host; transferred once."""
        return self.tokens.tolist()

    def tokens_of(self, nodes: Iterable[int]) -> list[int]:
        """The tokens of these nodes, in this order."""
        return [self.token_list[node] for node in nodes]

    def times_drawn(self) -> list[int]:
        """How often each node's token was drawn: its count, or once."""
        return [1] * self.tree.size if self.counts is None else self.counts.tolist()

    def samples(self, node: int) -> list[tuple[int, Tensor]]:
        """Each draw of a node's children, repeats included: the child, and q float[V] that it was drawn from."""
        shares = self.shares or [(self.probs, self.times_drawn())]
        return [(child, probs[node]) for probs, counts in shares for child in self.tree.children(node)
                for _ in range(int(counts[child]))]

    def proposal_probs(self) -> Tensor:
        """`probs`, for a rule that compares all siblings with one q. ValueError if the drafter gave none, and for
        samples of several drafters, with which such a rule would be biased.
        """
        if self.shares:
            raise ValueError(f"the draft merges samples of {len(self.shares)} drafters, but this rule compares with "
                             "one; verify with 'multi_step', which knows the drafter of each sample, or with 'naive'")
        if self.probs is None:
            raise ValueError(f"the draft is {self.proposal!r} and comes without probs; this rule compares with the "
                             "drafter's probabilities: use a drafter that has some, such as 'model' or a head")
        return self.probs

    def follow(self, next_token: Callable[[int], int]) -> tuple[list[int], int]:
        """Descends from the root to the child whose token is next_token(node), as long as there is one.

        Returns the nodes of the path, root excluded, and the next token after the last of them.
        """
        tokens, node, path = self.token_list, ROOT, []
        while True:
            token = next_token(node)
            node = next((child for child in self.tree.children(node) if tokens[child] == token), None)
            if node is None:
                return path, token
            path.append(node)

    def along(self, tokens: Iterable[int]) -> list[int]:
        """The nodes below the root along these tokens, as far as the tree has them."""
        remaining = iter(tokens)
        return self.follow(lambda node: next(remaining, None))[0]

    def part(self, tree: Tree, nodes: list[int]) -> "Draft":
        """The draft of some of its nodes, which form `tree` together with the root: node i of it is nodes[i]."""
        def rows(values):
            return None if values is None else values[nodes]

        shares = tuple((rows(probs), rows(counts)) for probs, counts in self.shares)
        return replace(self, tree=tree, tokens=rows(self.tokens), probs=rows(self.probs), counts=rows(self.counts),
                       reach=rows(self.reach), shares=shares)


def merge_samples(drafts: Sequence[Draft]) -> Draft:
    """The union of drafts of one root, all of them independent samples ("iid"); equal prefixes become one path."""
    if any(draft.proposal != "iid" for draft in drafts):
        raise ValueError(f"proposals are {', '.join(draft.proposal for draft in drafts)}; only \"iid\" samples of "
                         "several drafters can be merged")
    parents, tokens, children = [NO_PARENT], drafts[0].token_list[:1], {}  # (node, token) -> child, in the union
    places = [[ROOT] for _ in drafts]  # by drafter: the place in the union of each of its nodes
    for draft, nodes in zip(drafts, places):
        for parent, token in zip(draft.tree.parents[1:].tolist(), draft.token_list[1:]):
            edge = nodes[parent], token
            if edge not in children:
                children[edge] = len(parents)
                parents.append(nodes[parent])
                tokens.append(token)
            nodes.append(children[edge])
    shares = []
    for draft, nodes in zip(drafts, places):
        probs, counts = draft.probs.new_zeros(len(parents), draft.probs.shape[-1]), torch.zeros(len(parents)).long()
        probs[nodes], counts[nodes] = draft.probs, torch.tensor(draft.times_drawn())
        shares.append((probs, counts))
    counts = torch.stack([counts for _, counts in shares]).sum(0)
    counts[ROOT] = 1
    return Draft(Tree(parents), torch.tensor(tokens), "iid", counts=counts, shares=tuple(shares))


class Draws(Protocol):
    """Randomness for rules and drafters, one number at a time, so that it can be drawn or enumerated."""

    def uniform(self):
        """A number in [0, 1) that can be compared by <."""

    def categorical(self, probs: Tensor) -> int:
        """An index of probs float[V], with chances in proportion to probs (any sum). ValueError without mass."""


class GeneratorDraws:
    """`Draws` from a torch.Generator, which may be None where nothing random is drawn."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator
        self._ahead: list[float] = []

    def uniform(self) -> float:
        """A float64 in [0, 1)."""
        if not self._ahead:
            device = self.generator.device if self.generator is not None else "cpu"
            self._ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator, device=device).tolist()
        return self._ahead.pop()

    def categorical(self, probs: Tensor) -> int:
        """An index of probs float[V], by inversion of one uniform number.

        The block is drawn first, then a token of the block: block sums read the vocabulary once, where a running sum
        over all tokens takes as long as seven reads. ValueError if the mass is zero or not finite.
        """
        row = probs.numpy(force=True)
        block_sums = np.add.reduceat(row, np.arange(0, len(row), BLOCK))
        block, share = _invert(block_sums.cumsum(dtype=np.float64), self.uniform())
        first = block * BLOCK
        return first + _invert(row[first : first + BLOCK].cumsum(dtype=np.float64), share)[0]


def _invert(ends: np.ndarray, share: float) -> tuple[int, float]:
    """The entry in which a running sum `ends` passes `share` of its total, and the share of that entry passed."""
    total = float(ends[-1])
    if not 0 < total < math.inf:
        raise ValueError(
            f"probabilities sum to {total}; a token can only be drawn where they are finite and not all zero")
    goal = min(share * total, math.nextafter(total, 0))  # the product may round up to the total, where no token is
    index = int(ends.searchsorted(goal, side="right"))
    before = float(ends[index - 1]) if index else 0.0
    return index, (goal - before) / (float(ends[index]) - before)
