"""The block drafter: every depth ahead in one forward of a block head (see `lib.drafters.heads.block`)."""

from typing import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters import ahead
from lib.drafters.heads.layers import Behind
from lib.drafters.marginals import MarginalDrafter
from lib.lab.forward_clock import forward
from lib.models.cache import TreeCache
from lib.models.fused import weights_of

STARTS = 64  # rounds of a known text that are read in one forward


class BlockDrafter(MarginalDrafter):
    """The head's cache holds keys and values of the features of all tokens before the root, and never a block."""

    made_of: tuple | None = None  # the weights that `layers` were made of

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held."""
        return self.cache.bytes

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins with an empty cache."""
        super().start(prompts)
        self.cache = TreeCache()
        if (made_of := weights_of(self.head)) != self.made_of:  # else what was made holds
            self.made_of, self.layers = made_of, Behind(self.head.layers, self.head.norm)

    def _take(self, kept: list[list[int]], hidden: Sequence[Tensor]) -> None:
        with forward():
            features = self.head.read(hidden)
        counts = torch.tensor([len(nodes) for nodes in kept])
        slots = pad_sequence([torch.tensor(nodes) for nodes in kept], batch_first=True).to(features.device)
        rows = torch.arange(len(kept), device=features.device)
        fresh = features[rows[:, None], slots]
        before = self.cache.lengths if len(self.cache.lengths) else counts.new_zeros(len(kept))
        positions = before.to(fresh.device)[:, None] + torch.arange(fresh.shape[1], device=fresh.device)
        with forward():
            told = [layer.self_attn.context(fresh, positions) for layer in self.head.layers]
        for index, states in enumerate(told):
            self.cache.update(*states, index)
        self.cache.set_lengths(before + counts.to(before.device))
        self.newest = fresh[rows, counts.to(fresh.device) - 1]

    def _marginals(self, depth: int) -> Tensor:
        roots = self.target.get_input_embeddings()(torch.tensor(self.roots, device=self.newest.device))
        offsets = torch.arange(self.head.depth, device=roots.device)
        sees_all = torch.ones(self.head.depth, self.head.depth, dtype=torch.bool, device=roots.device)
        states = self.layers(self.head.enter(roots, self.newest), offsets, self.cache, sees_all)
        self.cache.forget()
        return self.output(states[:, :depth])

    def select(self, rows: list[int]) -> None:
        """Lets the other rows leave the cache."""
        super().select(rows)
        self.newest = self.newest[rows]
        self.cache.select(torch.tensor(rows))

    @torch.no_grad()
    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """What the head says d + 1 tokens ahead of every root of known texts: see `lib.drafters.ahead.read`."""
        def speak(hidden: Sequence[Tensor], text: Tensor, start: int):
            features = self.head.read(hidden)
            before = torch.arange(start, len(text) - 1, device=features.device)
            roots = self.target.get_input_embeddings()(text[start:-1].to(features.device))[None]
            parts = zip(before.split(STARTS), roots.split(STARTS, 1))
            states = torch.cat([self.head.states_along(features, own, part)[0] for part, own in parts])
            yield from self.output(states).unbind(1)

        return ahead.read(target, speak, texts, starts, depth)
