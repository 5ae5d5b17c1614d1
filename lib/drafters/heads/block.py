"""A block head: one forward gives a distribution for every depth ahead (DFlash's idea, without diffusion steps).

The block is the root's embedding and learned ones for the places behind it. It attends to itself in both directions,
and to the target's fused features of all tokens before the root, whose keys and values each layer makes for itself.
"""

from typing import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lib.attention.operator import tree_attention
from lib.drafters.heads.layers import Attend, HeadLayer


class BlockLayer(HeadLayer):
    """An ordinary Llama layer; what its attention sees beside the block is the caller's."""

    def __init__(self, config):
        super().__init__(config, config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def reads(self, x: Tensor) -> Tensor:
        """Its normed input."""
        return self.input_layernorm(x)


class BlockHead(nn.Module):
    """config: a LlamaConfig with feature_layers (indices into the target's hidden states) and block_size (depths D)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.feature_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.feature_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.place_embeddings = nn.Parameter(0.02 * torch.randn(config.block_size - 1, config.hidden_size))
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def depth(self) -> int:
        """D: depths ahead that the head speaks of."""
        return self.config.block_size

    def read(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The fused and normed features [B, T, H]."""
        return self.feature_norm(self.fc(torch.cat([hidden_states[layer] for layer in self.config.feature_layers], -1)))

    def enter(self, roots: Tensor, newest: Tensor) -> Tensor:
        """The block's inputs [..., D, H], of root embeddings and the features of the tokens before them, [..., H].

        The newest feature is added to every place: one layer needs it on its residual path.
        """
        places = self.place_embeddings.expand(*roots.shape[:-1], -1, -1)
        return torch.cat([roots[..., None, :], places], dim=-2) + newest[..., None, :]

    def states(self, block: Tensor, positions: Tensor, attends: Callable[[int, BlockLayer], Attend]) -> Tensor:
        """What the output layer reads, [B, T, H], of block inputs [B, T, H]; `attends` gives a layer its attention."""
        for index, layer in enumerate(self.layers):
            block = layer(block, positions, attends(index, layer))
        return self.norm(block)

    def states_along(self, features: Tensor, roots: Tensor, before: Tensor) -> Tensor:
        """The blocks of S rounds that start along known texts, in one forward: [B, S, D, H].

        features [B, T, H]: of the texts' tokens; roots [B, S, H]: the embeddings of the rounds' roots; before int64[S]:
        tokens before each root, at least 1 and at most T, whose features the round may see.
        """
        (batch, length), count = features.shape[:2], len(before)
        block = self.enter(roots, features[:, before - 1]).flatten(1, 2)
        place = torch.arange(length, device=features.device)[None]
        ahead = torch.arange(self.depth, device=features.device)
        own = torch.arange(count, device=features.device).repeat_interleave(self.depth)
        mask = torch.cat([place < before[own, None], own[:, None] == own[None]], dim=1)

        def attends(index: int, layer: BlockLayer) -> Attend:
            context = layer.self_attn.context(features, place)

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                keys, values = (torch.cat(parts, dim=2) for parts in zip(context, (key, value)))
                return tree_attention(query, keys, values, mask, 0).transpose(1, 2)

            return attend

        positions = (before[:, None] + ahead).flatten()[None]
        return self.states(block, positions, attends).view(batch, count, self.depth, -1)
