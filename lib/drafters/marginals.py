"""Drafters whose head gives one distribution for each depth ahead, the same for all nodes of that depth.

For the heads see `lib.drafters.heads.marginals`.
"""

from dataclasses import replace
from operator import attrgetter
from typing import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.drafter import ROOT_ALONE, Traits, levels_of
from lib.drafters.filling import check_proposal
from lib.drafters.growing import filling_of, growable
from lib.drafters.head_drafter import HeadDrafter, hidden_states
from lib.drafters.heads.layers import CachedLayers, embed
from lib.forward.packed import weights_of
from lib.lab.timing import forward
from lib.models.cache import TreeCache
from lib.trees.growth.candidates import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws

STARTS = 64  # rounds of a known text that are read in one forward pass


class MarginalDrafter(HeadDrafter):
    """Keeps roots, and takes one distribution per depth from its head in each round: a node of rank r at depth d is the
    r-th best token of distribution d (Cai et al. 2024, section 2.1.2). Static shapes are cut to the head's depths.

    proposal, temperature: as for `LanguageModelDrafter`. A kind defines `_marginals(depth) -> [B, D, V or K]`, for at
    most `depth` depths, and `_take(nodes, hidden)`, which keeps the hidden states that it needs of these nodes of each
    row. The head's `depth` is the largest D.
    """

    deepest = property(attrgetter("head.depth"))

    def __init__(self, target, head, *, proposal: str = "top_k", temperature: float = 1.0):
        check_proposal(proposal, temperature)
        super().__init__(target, head)
        self.proposal, self.temperature = proposal, temperature

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the lengths of the prompts int64[T]; their hidden states come with the first `commit`."""
        self._renew_output()
        self.roots: list[int] = []
        self.drafts: list[Draft] = []
        self.lengths = [len(prompt) for prompt in prompts]

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the shape filled, or a tree grown by a rule, from one forward pass of the head.

        Without a budget there is no forward pass, as where a policy advises against drafting.
        """
        static, per_depth = isinstance(shape, Tree), self.traits.per_depth
        if static:
            wanted = levels_of(shape, self.head.depth)[0]
        else:
            wanted = growable(shape, self.proposal, self.temperature, per_depth=per_depth,
                              per_parent=not per_depth).at_most(self.head.depth)
        if not min(wanted.budget, wanted.max_depth):
            wanted = ROOT_ALONE
        else:
            self.calls += 1
            with forward():
                logits = self._marginals(wanted.max_depth)
        filling = filling_of(wanted, self.roots, self.proposal, self.temperature, self.asked_probs, self.known,
                             one_pass=True, per_depth=per_depth, per_parent=not per_depth)
        children = self._children if static else self._growing
        while (level := filling.next_level()) is not None:
            filling.grow(level, children(logits, level.depth, filling.tokens_of(level)), draws)
        self.drafts, _ = filling.drafts()
        return self.drafts

    def _children(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """The logits [B, k, K] of the children of nodes int64[B, k] at a depth, or [B, 1, K] where all have the same;
        logits: `_marginals`.
        """
        return logits[:, depth, None]

    def _growing(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """The same, by which trees grow."""
        return self._children(logits, depth, tokens)

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Takes the hidden states of the kept tokens: of the whole prompts first, then of each root and its path."""
        first = not self.roots
        kept = [list(range(length)) for length in self.lengths] if first else [[ROOT, *nodes] for nodes in accepted]
        self._take(kept, hidden_states(target_outputs))
        self.roots = list(bonus)


class MedusaDrafter(MarginalDrafter):
    """Medusa's heads, which read the hidden state of the token before the root and so do not see the root itself."""

    def _take(self, kept: list[list[int]], hidden: Sequence[Tensor]) -> None:
        last = torch.tensor([nodes[-1] for nodes in kept], device=hidden[-1].device)
        self.newest = hidden[-1][torch.arange(len(kept), device=last.device), last]  # [B, H]

    def _marginals(self, depth: int) -> Tensor:
        return self.head.logits(self.head.states(self.newest, depth), self.output)

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.newest = self.newest[rows]

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        states = self.head.states(hidden[-1][0, start - 1 : len(text) - 2])
        return self.head.logits(states, self.output).unbind(1)


class BlockDrafter(MarginalDrafter):
    """A block head, whose cache holds keys and values of the features of all tokens before the root, never a block.

    With a selector (DFlash2) each node has a distribution of its own, after its token.
    """

    cache_bytes = property(attrgetter("cache.bytes"))
    window = property(attrgetter("head.window"))

    def __init__(self, target, head, *, proposal: str = "top_k", temperature: float = 1.0):
        super().__init__(target, head, proposal=proposal, temperature=temperature)
        self.cache = TreeCache()
        self.made_of: tuple | None = None  # the weights that `layers` were made of
        self.selector = head.candidate_selector

    @property
    def traits(self) -> Traits:
        """Those of its kind; with a selector a node's distribution depends on its token."""
        traits = super().traits
        return traits if self.selector is None else replace(traits, per_depth=False)

    def start(self, prompts: Sequence[Tensor]) -> None:
        super().start(prompts)
        self.cache = TreeCache()
        if (made_of := weights_of(self.head)) != self.made_of:  # else the layers are still valid
            self.made_of, self.layers = made_of, CachedLayers(self.head.layers, self.head.norm)

    def _take(self, kept: list[list[int]], hidden: Sequence[Tensor]) -> None:
        counts = torch.tensor([len(nodes) for nodes in kept])
        slots = pad_sequence([torch.tensor(nodes) for nodes in kept], batch_first=True)
        rows = torch.arange(len(kept))
        with forward():
            fresh = self.head.read({layer: hidden[layer][rows[:, None], slots] for layer in self.head.reads})
            self.layers.take(fresh, self.cache)
        self.cache.set_lengths(self.cache.lengths.cpu() + counts)
        self.newest = fresh[rows, counts - 1]

    def _marginals(self, depth: int) -> Tensor:
        self.states = self._states(depth)
        return self.head.scaled(self.output(self.states))

    def _children(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        own = super()._children(logits, depth, tokens)
        return own if self.selector is None else self.selector(own, self.states[:, depth, None], tokens.to(own.device))

    def _states(self, depth: int) -> Tensor:
        """[B, D, H]: what the output layer reads for each of at most `depth` depths."""
        roots = embed(self.head, self.target, torch.tensor(self.roots, device=self.newest.device))
        sees = self.head.sees()
        offsets = torch.arange(len(sees), device=roots.device)
        states = self.layers(self.head.enter(roots, self.newest), offsets, self.cache, sees)
        self.cache.forget()
        return self.head.by_depth(states)[:, :depth]

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.newest = self.newest[rows]
        self.cache.select(torch.tensor(rows))

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        features = self.head.read(hidden)
        before = torch.arange(start, len(text) - 1, device=features.device)
        roots = embed(self.head, self.target, text[start:-1].to(features.device))[None]
        parts = zip(before.split(STARTS), roots.split(STARTS, 1))
        states = torch.cat([self.head.states_along(features, own, part)[0] for part, own in parts])
        for ahead, logits in enumerate(self.head.scaled(self.output(states)).unbind(1)):
            if self.selector is not None:
                before = text[start + ahead : -1].to(logits.device)
                logits = self.selector(logits[: len(before)], states[: len(before), ahead], before)
            yield logits


class JetSpecDrafter(BlockDrafter):
    """JetSpec's head (arXiv 2606.18394): a block that sees backwards alone."""
