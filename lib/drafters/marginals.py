"""Drafters whose head gives a distribution for each depth ahead in one forward pass: Medusa's and block heads."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from lib.drafters.drafter import first_levels
from lib.drafters.filling import Filling
from lib.drafters.head_drafter import HeadDrafter, padded
from lib.drafters.heads.layers import CachedLayers
from lib.lab.processor import one_thread
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class MarginalDrafter(HeadDrafter):
    """Takes one distribution per depth from its head in each round: a node of rank r at depth d is the r-th best token
    of distribution d (Cai et al. 2024, section 2.1.2). Static shapes are cut to the head's depths.

    A kind defines `_marginals(depth) -> [B, D, V or K]`, for at most `depth` depths, and `_take(nodes, hidden)`, which
    keeps as `newest` [B, H] the last of the hidden states that it needs of these nodes of each row.
    """

    per_row = "roots", "newest"
    deepest = property(attrgetter("head.depth"))

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the shape filled, or a tree grown by a rule, from at most one forward pass of the head."""
        drafted = first_levels(shape, self.head.depth)
        filling = Filling(drafted, self.roots, self.proposal, self.temperature, self.with_probs, self.reduced,
                          one_pass=True)
        while (level := filling.next_level()) is not None:
            if level.depth == 0:
                self.calls += 1
                logits = self._marginals(drafted.max_depth)
            with one_thread():
                filling.grow(level, self.head.biased(logits[:, level.depth, None], filling.tokens_of(level)), draws)
        self.drafts, _ = filling.drafts()
        return self.drafts

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Takes the hidden states of the kept tokens: of the whole prompts first, then of each root and its path."""
        kept = [range(len(text)) for text in self.prompts] if self.prompts else [[ROOT, *nodes] for nodes in accepted]
        self._take(kept, target_outputs.hidden_states)
        self.prompts, self.roots = None, list(bonus)


class MedusaDrafter(MarginalDrafter):
    """Medusa's heads, which read the hidden state of the token before the root and so do not see the root itself."""

    def _take(self, kept: Sequence[Sequence[int]], hidden: Sequence[Tensor]) -> None:
        self.newest = hidden[-1][torch.arange(len(kept)), torch.tensor([nodes[-1] for nodes in kept])]

    def _marginals(self, depth: int) -> Tensor:
        return self.head.logits(self.head.states(self.newest, depth), self.output)

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        return self.head.logits(self.head.states(hidden[-1][0, start - 1 : len(text) - 2]), self.output).unbind(1)


class DFlashDrafter(MarginalDrafter):
    """DFlash (arXiv 2602.06036): a block head, whose cache holds the features of all tokens before the root."""

    def _renew_layers(self) -> None:
        self.layers = CachedLayers(self.head.layers, self.head.norm)

    def _take(self, kept: Sequence[Sequence[int]], hidden: Sequence[Tensor]) -> None:
        counts, rows, slots = torch.tensor([len(nodes) for nodes in kept]), torch.arange(len(kept)), padded(kept)
        states = {layer: hidden[layer][rows[:, None], slots] for layer in self.head.config.feature_layers}
        features = self.head.read(states)
        self.layers.take(features, self.cache)
        self.cache.set_lengths(self.cache.lengths.cpu() + counts)
        self.newest = features[rows, counts - 1]

    def _marginals(self, depth: int) -> Tensor:
        size, device = self.head.config.block_size, self.newest.device
        block = self.head.enter(self.target, torch.tensor(self.roots, device=device), self.newest)
        sees = torch.ones(size, size, dtype=torch.bool, device=device)
        states = self.layers(block, torch.arange(size, device=device), self.cache, sees)
        self.cache.forget()
        return self.output(self.head.by_depth(states)[:, :depth])


class DSparkDrafter(DFlashDrafter):
    """DSpark (arXiv 2607.05147): a block head, whose Markov head gives each node a distribution of its own. So one
    forward pass serves trees that grow by any rule over one distribution per node.
    """
