"""Medusa: heads on the target's last hidden state draft without a model of their own (Cai et al. 2024)."""

from typing import Sequence

import torch
from torch import Tensor

from lib.drafters import ahead
from lib.drafters.marginals import MarginalDrafter


class MedusaDrafter(MarginalDrafter):
    """The heads read the hidden state at the token before the root: they do not know the root itself."""

    def _take(self, kept: list[list[int]], hidden: Sequence[Tensor]) -> None:
        last = torch.tensor([nodes[-1] for nodes in kept], device=hidden[-1].device)
        self.newest = hidden[-1][torch.arange(len(kept), device=last.device), last]  # [B, H]

    def _marginals(self, depth: int) -> Tensor:
        return self.head.logits(self.head.states(self.newest, depth), self.output)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        super().select(rows)
        self.newest = self.newest[rows]

    @torch.no_grad()
    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """What the heads say d + 1 tokens ahead of every root of known texts: see `lib.drafters.ahead.read`."""
        def speak(hidden: Sequence[Tensor], text: Tensor, start: int):
            states = self.head.states(hidden[-1][0, start - 1 : len(text) - 2])
            yield from self.head.logits(states, self.output).unbind(1)

        return ahead.read(target, speak, texts, starts, depth)
