"""Heads that give one distribution for each depth ahead: Medusa's, and block heads."""

from typing import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lib.attention.operator import tree_attention
from lib.drafters.heads.layers import Attend, Head, HeadLayer


class ResidualBlock(nn.Module):
    """x + SiLU(W1 x): zero weights at first, so that an untrained head is the target's own output layer."""

    def __init__(self, hidden: int):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(Head):
    """K stacks of residual blocks, the k-th for the token k + 2 places after that of the hidden state (Cai et al. 2024,
    section 2.1.1).

    config: hidden_size, medusa_num_heads (K), medusa_num_layers (blocks of a head); with `medusa_vocab_size` every head
    has an output layer of its own, as published ones do, else all share the target's.
    """

    def __init__(self, config):
        super().__init__(config)
        hidden, count = config.hidden_size, config.medusa_num_heads
        self.stacks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(hidden) for _ in range(config.medusa_num_layers))) for _ in range(count))
        vocabulary = getattr(config, "medusa_vocab_size", None)
        outputs = (nn.Linear(hidden, vocabulary, bias=False) for _ in range(count if vocabulary else 0))
        self.outputs = nn.ModuleList(outputs)

    @property
    def depth(self) -> int:
        """K: depths ahead that the heads predict."""
        return len(self.stacks)

    def states(self, hidden: Tensor, depth: int | None = None) -> Tensor:
        """The inputs [..., K, H] of the output layers, from last hidden states [..., H] of the target; K <= `depth`."""
        return torch.stack([stack(hidden) for stack in self.stacks[:depth]], dim=-2)

    def logits(self, states: Tensor, output: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., K, V] of states [..., K, H]; `output` is the target's output layer, unless the heads have their own."""
        if not len(self.outputs):
            return output(states)
        return torch.stack([own(states[..., k, :]) for k, own in zip(range(states.shape[-2]), self.outputs)], dim=-2)


class BlockLayer(HeadLayer):
    """An ordinary Llama layer; the caller's `Attend` decides what it attends to besides the block."""

    def __init__(self, config):
        super().__init__(config, config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def reads(self, x: Tensor) -> Tensor:
        return self.input_layernorm(x)


class BlockHead(Head):
    """Predicts all depths in one forward pass (DFlash's idea, without diffusion steps).

    Its block is the root's embedding and learned ones for the places after it. It attends to itself, in both directions
    or (config.causal) backwards alone, as JetSpec's head does (arXiv 2606.18394), and to the target's fused features of
    all tokens before the root. config: a LlamaConfig with feature_layers (indices into the target's hidden states) and
    block_size (depths D).
    """

    def __init__(self, config):
        super().__init__(config)
        self.fc = nn.Linear(len(config.feature_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.feature_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.place_embeddings = nn.Parameter(0.02 * torch.randn(config.block_size - 1, config.hidden_size))
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def depth(self) -> int:
        """D: depths ahead that the head predicts."""
        return self.config.block_size

    def sees(self) -> Tensor:
        """bool[D, D]: the places of its block that each place attends to."""
        every = torch.ones(self.depth, self.depth, dtype=torch.bool, device=self.place_embeddings.device)
        return every.tril() if getattr(self.config, "causal", False) else every

    def read(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The fused and normed features [B, T, H]."""
        return self.feature_norm(self.fc(torch.cat([hidden_states[layer] for layer in self.config.feature_layers], -1)))

    def enter(self, roots: Tensor, newest: Tensor) -> Tensor:
        """The block's inputs [..., D, H], of root embeddings and the features of the tokens before them, [..., H].

        The newest feature is added to every place: one layer needs it on its residual path.
        """
        places = self.place_embeddings.expand(*roots.shape[:-1], -1, -1)
        return torch.cat([roots[..., None, :], places], dim=-2) + newest[..., None, :]

    def states_along(self, features: Tensor, roots: Tensor, before: Tensor) -> Tensor:
        """The blocks of S rounds that start along known texts, in one forward: [B, S, D, H].

        features [B, T, H]: of the texts' tokens; roots [B, S, H]: the embeddings of the rounds' roots; before int64[S]:
        the number of tokens before each root, 1 to T, whose features the round may read.
        """
        (batch, length), count = features.shape[:2], len(before)
        block = self.enter(roots, features[:, before - 1]).flatten(1, 2)
        place = torch.arange(length, device=features.device)[None]
        ahead = torch.arange(self.depth, device=features.device)
        own = torch.arange(count, device=features.device).repeat_interleave(self.depth)
        mask = torch.cat([place < before[own, None], torch.block_diag(*[self.sees()] * count)], dim=1)
        positions = (before[:, None] + ahead).flatten()[None]
        for layer in self.layers:
            block = layer(block, positions, after(layer.self_attn.context(features, place), mask))
        return self.norm(block).view(batch, count, self.depth, -1)


class SparkHead(BlockHead):
    """DSpark's semi-autoregressive head (arXiv 2607.05147): a block head, and a low-rank bias from the token before.

    Of the token x before depth k, p_k(v) is proportional to exp(U_k(v) + W1[x] W2[v]), where U_k are the block's logits:
    every node of a tree has its own distribution, for a product of config.markov_rank numbers. W1 (`markov_embed`) has
    a row for each token that the head drafts, and a last one for all others.
    """

    def __init__(self, config):
        super().__init__(config)
        drafted = getattr(config, "draft_tokens", None) or config.vocab_size
        self.markov_embed = nn.Embedding(drafted + 1, config.markov_rank)
        self.markov_head = nn.Linear(config.markov_rank, drafted, bias=False)
        nn.init.zeros_(self.markov_head.weight)  # a new head is its block

    def bias(self, before: Tensor) -> Tensor:
        """[..., K]: what the tokens int64[...] before add to the logits."""
        if self.tokens is None:
            return self.markov_head(self.markov_embed(before))
        row = torch.searchsorted(self.tokens, before).clamp_max(len(self.tokens) - 1)
        return self.markov_head(self.markov_embed(row.where(self.tokens[row] == before, len(self.tokens))))


def after(context: tuple[Tensor, Tensor], mask: Tensor) -> Attend:
    """Attention to the keys and values [B, Hkv, T, d] of a text, and to those of the block; mask bool[m, T + m]."""
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat(parts, dim=2) for parts in zip(context, (key, value)))
        return tree_attention(query, keys, values, mask, 0).transpose(1, 2)

    return attend
