"""The input of a verification rule: a draft (a tree with tokens, and how they were chosen), and random draws."""

import itertools
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
        temperature. For "top_k" it is the drafter's confidence, which only lossy rules read, or None.
    counts: int64[m], how often each node's token was drawn: repeated "iid" samples share one node. None: once each.
    reach: float64[m] of a grown tree: the product of the drafter's probabilities along each node's path.
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
        if self.proposal not in PROPOSALS:
            raise ValueError(f"proposal is {self.proposal!r}; choose one of {', '.join(PROPOSALS)}")
        if self.proposal != "top_k" and self.probs is None and not self.shares:
            raise ValueError(f"proposal {self.proposal!r} comes without probs; give the distributions that the "
                             "children were drawn from")
        for name, rows, rank in (("tokens", self.tokens, 1), ("probs", self.probs, 2), ("counts", self.counts, 1)):
            if rows is not None and (rows.dim() != rank or len(rows) != self.tree.size):
                raise ValueError(f"{name} have shape {tuple(rows.shape)} for a tree of {self.tree.size} nodes; give "
                                 "one row per node, the root's first")

    @cached_property
    def token_list(self) -> list[int]:
        """`tokens` on the host; transferred once."""
        return self.tokens.tolist()

    def tokens_of(self, nodes: Iterable[int]) -> list[int]:
        """The tokens of these nodes, in this order."""
        return [self.token_list[node] for node in nodes]

    def token_paths(self) -> list[tuple[int, ...]]:
        """The tokens of the path to each node, the root's excluded."""
        paths = [()]
        for parent, token in zip(self.tree.parents[1:].tolist(), self.token_list[1:]):
            paths.append((*paths[parent], token))
        return paths

    def times_drawn(self) -> list[int]:
        """How often each node's token was drawn: its count, or once."""
        return [1] * self.tree.size if self.counts is None else self.counts.tolist()

    def samples(self, node: int) -> list[tuple[int, Tensor]]:
        """Each draw of a node's children, repeats included: the child, and q float[V] that it was drawn from."""
        shares = self.shares or [(self.probs, self.times_drawn())]
        return [(child, probs[node]) for probs, counts in shares for child in self.tree.children(node)
                for _ in range(int(counts[child]))]

    def proposal_probs(self) -> Tensor:
        """`probs`, for a rule that compares all siblings with one q. ValueError if there is no such q."""
        if self.probs is None:
            raise ValueError(f"the draft of {len(self.shares) or 1} drafters comes without probs of one, with which "
                             "this rule compares; use one that has them, such as 'model', or the rule 'naive'")
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
        """The draft of these nodes alone, the root first; they form `tree`, whose node i is nodes[i]."""
        rows = {name: values[nodes] for name in ("tokens", "probs", "counts", "reach")
                if (values := getattr(self, name)) is not None}
        shares = tuple((probs[nodes], counts[nodes]) for probs, counts in self.shares)
        return replace(self, tree=tree, shares=shares, **rows)


def merge_samples(drafts: Sequence[Draft]) -> Draft:
    """The union of drafts of one root, all of them independent samples ("iid"); equal prefixes become one path."""
    if any(draft.proposal != "iid" for draft in drafts):
        raise ValueError(f"proposals are {', '.join(draft.proposal for draft in drafts)}; only \"iid\" samples of "
                         "several drafters can be merged")
    paths = [draft.token_paths() for draft in drafts]
    node_of = {path: node for node, path in enumerate(dict.fromkeys(itertools.chain(*paths)))}  # in the union
    parents = [NO_PARENT, *(node_of[path[:-1]] for path in node_of if path)]
    tokens = [drafts[0].token_list[ROOT], *(path[-1] for path in node_of if path)]
    shares = []
    for draft, paths_of_draft in zip(drafts, paths):
        nodes = [node_of[path] for path in paths_of_draft]
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
            device = getattr(self.generator, "device", "cpu")
            self._ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator, device=device).tolist()
        return self._ahead.pop()

    def categorical(self, probs: Tensor) -> int:
        """An index of probs float[V], by inversion of one uniform number.

        The block is drawn first, then a token of the block: block sums read the vocabulary once, where a running sum
        over all tokens takes as long as seven reads. ValueError if the mass is zero or not finite.
        """
        row = probs.numpy(force=True)
        block, share = _invert(np.add.reduceat(row, np.arange(0, len(row), BLOCK)), self.uniform())
        return block * BLOCK + _invert(row[block * BLOCK :][:BLOCK], share)[0]


def _invert(masses: np.ndarray, share: float) -> tuple[int, float]:
    """The entry in which the running sum of masses passes `share` of its total, and the share of that entry passed."""
    ends = masses.cumsum(dtype=np.float64)
    total = float(ends[-1])
    if not 0 < total < math.inf:
        raise ValueError(f"probabilities sum to {total}; only finite ones that are not all zero can be drawn from")
    goal = min(share * total, math.nextafter(total, 0))  # the product may round up to the total, where no token is
    index = int(ends.searchsorted(goal, side="right"))
    before = float(ends[index - 1]) if index else 0.0
    return index, (goal - before) / (float(ends[index]) - before)
