"""Medusa's heads: each reads a hidden state of the target and speaks of one depth (Cai et al. 2024, section 2.1.1)."""

from typing import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """x + SiLU(W1 x): zero weights at first, so that an untrained head is the target's own output layer."""

    def __init__(self, hidden: int):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to [..., H]."""
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """K stacks of residual blocks, the k-th for the token k + 2 places behind the hidden state's own.

    config: hidden_size, medusa_num_heads (K), medusa_num_layers (blocks of a head); with `medusa_vocab_size` every head
    has an output layer of its own, as published ones do, else all share the target's.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, count = config.hidden_size, config.medusa_num_heads
        self.stacks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(hidden) for _ in range(config.medusa_num_layers))) for _ in range(count))
        vocabulary = getattr(config, "medusa_vocab_size", None)
        own = count if vocabulary else 0
        self.outputs = nn.ModuleList(nn.Linear(hidden, vocabulary, bias=False) for _ in range(own))

    @property
    def depth(self) -> int:
        """K: depths ahead that the heads speak of."""
        return len(self.stacks)

    def states(self, hidden: Tensor, depth: int | None = None) -> Tensor:
        """What the output layers read, [..., K, H], of the target's last hidden states [..., H]; K at most `depth`."""
        return torch.stack([stack(hidden) for stack in self.stacks[:depth]], dim=-2)

    def logits(self, states: Tensor, output: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., K, V] of states [..., K, H]; `output` is the target's output layer, unless the heads have their own."""
        if not len(self.outputs):
            return output(states)
        return torch.stack([own(states[..., k, :]) for k, own in zip(range(states.shape[-2]), self.outputs)], dim=-2)
