"""Drafters whose head gives a distribution for each depth ahead in one forward pass: Medusa's and block heads. DSpark's
adds to each node's logits what its parent's token changes. For the heads see `lib.drafters.heads.marginals`.
"""

from operator import attrgetter
from typing import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.drafter import first_levels
from lib.drafters.filling import Filling
from lib.drafters.head_drafter import HeadDrafter, hidden_states
from lib.drafters.heads.layers import CachedLayers, embed
from lib.lab.processor import one_thread
from lib.lab.timing import forward
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws

STARTS = 64  # rounds of a known text that are read in one forward pass


class MarginalDrafter(HeadDrafter):
    """Keeps roots, and takes one distribution per depth from its head in each round: a node of rank r at depth d is the
    r-th best token of distribution d (Cai et al. 2024, section 2.1.2). Static shapes are cut to the head's depths.

    A kind defines `_marginals(depth) -> [B, D, V or K]`, for at most `depth` depths, and `_take(nodes, hidden)`, which
    keeps as `newest` [B, H] the last of the hidden states that it needs of these nodes of each row. The head's `depth`
    is the largest D.
    """

    deepest = property(attrgetter("head.depth"))

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the lengths of the prompts int64[T]; their hidden states come with the first `commit`."""
        super().start(prompts)
        self.roots: list[int] = []
        self.lengths = [len(prompt) for prompt in prompts]

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the shape filled, or a tree grown by a rule, from one forward pass of the head.

        Without a budget there is no forward pass, as where a policy advises against drafting.
        """
        drafted = first_levels(shape, self.head.depth)
        filling = Filling(drafted, self.roots, self.proposal, self.temperature, self.with_probs, self.reduced,
                          one_pass=True)
        while (level := filling.next_level()) is not None:
            if level.depth == 0:
                self.calls += 1
                with forward():
                    logits = self._marginals(drafted.max_depth)
            filling.grow(level, self._children(logits, level.depth, filling.tokens_of(level)), draws)
        self.drafts, _ = filling.drafts()
        return self.drafts

    def _children(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """The logits [B, k, K] of the children of nodes int64[B, k] at a depth, or [B, 1, K] where all have the same;
        logits: `_marginals`.
        """
        return logits[:, depth, None]

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Takes the hidden states of the kept tokens: of the whole prompts first, then of each root and its path."""
        first = not self.roots
        kept = [list(range(length)) for length in self.lengths] if first else [[ROOT, *nodes] for nodes in accepted]
        self._take(kept, hidden_states(target_outputs))
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """As `Drafter.select`, for the roots, the newest states and the cache, if the head has one."""
        self.roots, self.newest = [self.roots[row] for row in rows], self.newest[rows]
        if self.cache.layers:
            self.cache.select(torch.tensor(rows))


class MedusaDrafter(MarginalDrafter):
    """Medusa's heads, which read the hidden state of the token before the root and so do not see the root itself."""

    def _take(self, kept: list[list[int]], hidden: Sequence[Tensor]) -> None:
        last = torch.tensor([nodes[-1] for nodes in kept], device=hidden[-1].device)
        self.newest = hidden[-1][torch.arange(len(kept), device=last.device), last]

    def _marginals(self, depth: int) -> Tensor:
        return self.head.logits(self.head.states(self.newest, depth), self.output)

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        states = self.head.states(hidden[-1][0, start - 1 : len(text) - 2])
        return self.head.logits(states, self.output).unbind(1)


class DFlashDrafter(MarginalDrafter):
    """DFlash (arXiv 2602.06036): a block head, whose cache holds keys and values of the features of all tokens before
    the root, never a block.
    """

    def _renew_layers(self) -> None:
        self.layers = CachedLayers(self.head.layers, self.head.norm)

    def _take(self, kept: list[list[int]], hidden: Sequence[Tensor]) -> None:
        counts = torch.tensor([len(nodes) for nodes in kept])
        slots = pad_sequence([torch.tensor(nodes) for nodes in kept], batch_first=True)
        rows = torch.arange(len(kept))
        with forward():
            states = {layer: hidden[layer][rows[:, None], slots] for layer in self.head.config.feature_layers}
            fresh = self.head.read(states)
            self.layers.take(fresh, self.cache)
        self.cache.set_lengths(self.cache.lengths.cpu() + counts)
        self.newest = fresh[rows, counts - 1]

    def _marginals(self, depth: int) -> Tensor:
        roots = embed(self.head, self.target, torch.tensor(self.roots, device=self.newest.device))
        sees = self.head.sees()
        offsets = torch.arange(len(sees), device=roots.device)
        states = self.layers(self.head.enter(roots, self.newest), offsets, self.cache, sees)
        self.cache.forget()
        return self.output(self.head.by_depth(states)[:, :depth])

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        features = self.head.read(hidden)
        before = torch.arange(start, len(text) - 1, device=features.device)
        roots = embed(self.head, self.target, text[start:-1].to(features.device))[None]
        parts = zip(before.split(STARTS), roots.split(STARTS, 1))
        states = torch.cat([self.head.states_along(features, embedded, before)[0] for before, embedded in parts])
        return self.output(states).unbind(1)


class DSparkDrafter(DFlashDrafter):
    """DSpark (arXiv 2607.05147): a block head, whose logits a small product with the parent's token changes at each
    node. So one forward pass serves chains, static trees, and trees that grow by any rule over one distribution per
    node.
    """

    @one_thread()
    def _children(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        return logits[:, depth, None] + self.head.bias(tokens.to(logits.device))

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        for ahead, logits in enumerate(super()._ahead(hidden, text, start, depth)):
            before = text[start + ahead : -1].to(logits.device)
            yield logits[: len(before)] + self.head.bias(before)
