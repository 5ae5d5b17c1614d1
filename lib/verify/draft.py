"""The input of a verification rule: a draft (a tree with tokens, and how they were chosen) and random draws; and the
descent through a draft.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Callable, Iterable, Protocol, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.trees.tree import ROOT, Tree

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
    """

    tree: Tree
    tokens: Tensor
    proposal: str
    probs: Tensor | None = None
    counts: Tensor | None = None
    reach: np.ndarray | None = None

    def __post_init__(self):
        size, probs, counts = self.tree.size, self.probs, self.counts
        remedy = f" for a tree of {size} nodes; give one"
        if self.proposal not in PROPOSALS:
            raise ValueError(f"proposal is {self.proposal!r}; choose one of {', '.join(PROPOSALS)}")
        if self.tokens.shape != (size,):
            raise ValueError(f"tokens have shape {tuple(self.tokens.shape)}{remedy} token per node, the root's first")
        if self.proposal != "top_k" and probs is None:
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
        counts = self.times_drawn()
        return [(child, self.probs[node]) for child in self.tree.children(node) for _ in range(counts[child])]

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
        rows = {name: None if values is None else values[nodes]
                for name in ("tokens", "probs", "counts", "reach") for values in [getattr(self, name)]}
        return replace(self, tree=tree, **rows)

    def proposal_probs(self) -> Tensor:
        """`probs`, for a rule that needs them. ValueError if the drafter gave none."""
        if self.probs is None:
            raise ValueError(f"the draft is {self.proposal!r} and comes without probs; this rule compares with the "
                             "drafter's probabilities: use a drafter that has some, such as 'model' or a head")
        return self.probs

    def entries(self, probs: Tensor) -> Callable[[int], float]:
        """child -> the entry of its token in its parent's row of probs float[m, V]; nothing else of probs is read.

        On a CPU entries are read one by one on demand; from other devices all are transferred at once.
        """
        parents, tokens = self.tree.parents, self.token_list
        if probs.device.type == "cpu" and probs.dtype in (torch.float32, torch.float64):
            table = probs.numpy(force=True)
            return lambda child: table.item(parents[child], tokens[child])
        drafted = probs[torch.tensor(parents[1:], device=probs.device), self.tokens[1:].to(probs.device)]
        return [math.nan, *drafted.tolist()].__getitem__


@dataclass(frozen=True)
class DrafterShare:
    """One drafter's share of a merged draft of m nodes.

    probs float[m, V]: the distributions that it drew children from. counts int64[m]: how often it drew each node.
    """

    probs: Tensor
    counts: Tensor


@dataclass(frozen=True)
class MergedDraft(Draft):
    """Independent samples of several drafters as one tree; `sources` keeps each drafter's proposal apart.

    The siblings were drawn from different distributions. A rule that compares all of them with one q would be biased,
    and is refused; `probs` is the mean of the proposals, for display only.
    """

    sources: tuple[DrafterShare, ...] = ()

    def samples(self, node: int) -> list[tuple[int, Tensor]]:
        """Each draw of a node's children by each drafter: the child, and q float[V] of the drafter that drew it."""
        return [(child, source.probs[node]) for source in self.sources for child in self.tree.children(node)
                for _ in range(int(source.counts[child]))]

    def part(self, tree: Tree, nodes: list[int]) -> "MergedDraft":
        """As for any draft, with each drafter's proposal."""
        sources = tuple(DrafterShare(source.probs[nodes], source.counts[nodes]) for source in self.sources)
        return replace(super().part(tree, nodes), sources=sources)

    def proposal_probs(self) -> Tensor:
        """Refused: the siblings have no common distribution."""
        raise ValueError(f"the draft merges samples of {len(self.sources)} drafters, but this rule compares with one; "
                         "verify with 'multi_step', which knows the drafter of each sample, or with 'naive'")


def merge_samples(drafts: Sequence[Draft]) -> MergedDraft:
    """The union of drafts of one root, all of them independent samples ("iid"); equal prefixes become one path."""
    if any(draft.proposal != "iid" for draft in drafts):
        raise ValueError(f"proposals are {', '.join(draft.proposal for draft in drafts)}; only \"iid\" samples of "
                         "several drafters can be merged")
    place = {(): ROOT}
    parents, tokens, nodes_of = [-1], [int(drafts[0].tokens[ROOT])], []
    for draft in drafts:
        paths = {ROOT: ()}
        for node in range(1, draft.tree.size):
            above = paths[int(draft.tree.parents[node])]
            paths[node] = (*above, int(draft.tokens[node]))
            if paths[node] not in place:
                place[paths[node]] = len(parents)
                parents.append(place[above])
                tokens.append(paths[node][-1])
        nodes_of.append([place[paths[node]] for node in range(draft.tree.size)])
    sources = []
    for draft, nodes in zip(drafts, nodes_of):
        probs = draft.probs.new_zeros(len(parents), draft.probs.shape[-1])
        probs[nodes] = draft.probs
        counts = torch.zeros(len(parents), dtype=torch.long)
        counts[nodes] = torch.tensor(draft.times_drawn())
        sources.append(DrafterShare(probs, counts))
    counts = sum(source.counts for source in sources)
    counts[ROOT] = 1
    mean = sum(source.probs for source in sources) / len(drafts)
    return MergedDraft(Tree(parents), torch.tensor(tokens), "iid", mean, counts, sources=tuple(sources))


class Draws(Protocol):
    """Randomness for rules and drafters, one number at a time, so that it can be drawn or enumerated."""

    def uniform(self):
        """A number in [0, 1) that can be compared with <, <=, > and >=."""

    def categorical(self, probs: Tensor, *, otherwise: Tensor | None = None) -> int:
        """An index of probs float[V], with chances in proportion to probs (any sum); of `otherwise` float[V] where
        probs has no mass.
        """


class GeneratorDraws:
    """`Draws` from a torch.Generator, which may be None where nothing random is drawn."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator
        self._ahead: list[float] = []

    def uniform(self) -> float:
        """A float64 in [0, 1)."""
        if not self._ahead:
            self.prepare()
        return self._ahead.pop()

    def prepare(self) -> None:
        """Draws the next AHEAD numbers; numbers left over from before are dropped."""
        device = self.generator.device if self.generator is not None else "cpu"
        self._ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator, device=device).tolist()

    def categorical(self, probs: Tensor, *, otherwise: Tensor | None = None) -> int:
        """An index of probs float[V], as `Draws.categorical` defines it, by inversion of one uniform number.

        The block is drawn first, then a token of the block: block sums read the vocabulary once, where a running sum
        over all tokens takes as long as seven reads. ValueError if the mass is zero or not finite and `otherwise` is
        None.
        """
        row = probs.numpy(force=True)
        ends = np.add.reduceat(row, np.arange(0, len(row), BLOCK)).cumsum(dtype=np.float64)
        if otherwise is not None and ends[-1] == 0:
            return self.categorical(otherwise)
        place, share = _invert(ends, self.uniform())
        block = row[place * BLOCK : (place + 1) * BLOCK]
        return place * BLOCK + _invert(block.cumsum(dtype=np.float64), share)[0]


def _invert(ends: np.ndarray, share: float) -> tuple[int, float]:
    """The entry in which a running sum `ends` passes `share` of its total, and the share of that entry passed."""
    whole = float(ends[-1])
    if not 0 < whole < math.inf:
        raise ValueError(
            f"probabilities sum to {whole}; a token can only be drawn where they are finite and not all zero"
        )
    goal = min(share * whole, math.nextafter(whole, 0))  # the product may round up to the total, where no token is
    index = int(ends.searchsorted(goal, side="right"))
    before = float(ends[index - 1]) if index else 0.0
    return index, (goal - before) / (float(ends[index]) - before)


# (node, its children) -> (the accepted child, None), or (None, the bonus token) if no child is accepted
Decide = Callable[[int, tuple[int, ...]], tuple[int | None, int | None]]


def descend(draft: Draft, target_probs: Tensor, draws: Draws, decide: Decide) -> tuple[list[int], int]:
    """The path that `decide` takes from the root, and the bonus token that it gives where it takes no child.

    At a node without children, the path ends with a token drawn from the target's distribution there.
    """
    node, accepted = ROOT, []
    while children := draft.tree.children(node):
        child, bonus = decide(node, children)
        if child is None:
            return accepted, bonus
        accepted.append(child)
        node = child
    return accepted, draws.categorical(target_probs[node])
