"""Heads that give one distribution for each depth ahead: Medusa's, and block heads."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lib.attention.operator import tree_attention
from lib.drafters.heads.layers import Head, HeadLayer, embed

STARTS = 64  # rounds of known texts that a block head reads in one forward pass


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
    """Stacks k = 0 .. K - 1 of residual blocks, each for the token k + 2 after that of the hidden state (Cai et al.
    2024, section 2.1.1). Submodules have the names of published files: a number for each head. In version 1 of that
    layout every head ends in an output layer (config.outputs_per_head); else all share the target's.
    """

    def __init__(self, config):
        super().__init__(config)
        hidden, self.blocks, self.depth = config.hidden_size, config.medusa_num_layers, config.medusa_num_heads
        self.has_outputs = bool(getattr(config, "outputs_per_head", False))
        for number in range(self.depth):
            stack = nn.Sequential(*(ResidualBlock(hidden) for _ in range(self.blocks)))
            if self.has_outputs:
                stack.append(nn.Linear(hidden, config.draft_vocab_size or config.vocab_size, bias=False))
            self.add_module(str(number), stack)

    def states(self, hidden: Tensor, depth: int | None = None) -> Tensor:
        """The inputs [..., K, H] of the output layers, from last hidden states [..., H] of the target; K <= `depth`."""
        stacks = [self.get_submodule(str(number)) for number in range(self.depth)]
        return torch.stack([stack[: self.blocks](hidden) for stack in stacks[:depth]], dim=-2)

    def along(self, target, hidden: Sequence[Tensor], tokens: Tensor, before: Tensor, depth: int) -> Sequence[Tensor]:
        """As for `Head`."""
        return self.states(hidden[-1][:, before - 1], depth).unbind(-2)

    def logits(self, states: Tensor, output: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., K, V] of states [..., K, H]; `output` is the target's output layer, unless the heads have their own."""
        if not self.has_outputs:
            return output(states)
        return torch.stack([self.get_submodule(str(number))[-1](state)
                            for number, state in enumerate(states.unbind(-2))], dim=-2)


class BlockHead(Head):
    """Predicts all depths in one forward pass: DFlash's head (arXiv 2602.06036) and DSpark's (arXiv 2607.05147).

    Its block of P = config.block_size positions is the root's embedding and those of mask tokens; or learned ones,
    with the newest feature added to all, as in the head that ships (config.learned_places). It attends to itself, in
    both directions, and to the target's features, fused from config.feature_layers, of all tokens before the root. A
    position of DFlash's block predicts its own token, the root's none; one of DSpark's (config.shifted) the next token.
    """

    def __init__(self, config):
        super().__init__(config)
        self.fc = nn.Linear(len(config.feature_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.place_embeddings = None
        if getattr(config, "learned_places", False):
            self.place_embeddings = nn.Parameter(0.02 * torch.randn(config.block_size - 1, config.hidden_size))
        self.layers = nn.ModuleList(HeadLayer(config, config.hidden_size) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.depth = config.block_size - (not config.shifted)  # D: depths ahead that it predicts
        if getattr(config, "markov_rank", 0):
            self.markov_head = MarkovHead(config)

    def read(self, hidden_states: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """The fused and normed features [B, T, H]; hidden states by their index."""
        return self.hidden_norm(self.fc(torch.cat([hidden_states[layer] for layer in self.config.feature_layers], -1)))

    def enter(self, target, roots: Tensor, newest: Tensor) -> Tensor:
        """The block's inputs [..., P, H], of root tokens int64[...] and the features [..., H] of the tokens before."""
        if self.place_embeddings is None:
            masks = roots.new_full((*roots.shape, self.config.block_size - 1), self.config.mask_token_id)
            return embed(self, target, torch.cat([roots[..., None], masks], dim=-1))
        learned = self.place_embeddings.expand(*roots.shape, -1, -1)
        return torch.cat([embed(self, target, roots)[..., None, :], learned], dim=-2) + newest[..., None, :]

    def by_depth(self, states: Tensor) -> Tensor:
        """The states [..., D, H] that predict depths 1 .. D, of those of all positions [..., P, H]."""
        return states if self.config.shifted else states[..., 1:, :]

    def along(self, target, hidden: Sequence[Tensor], tokens: Tensor, before: Tensor, depth: int) -> Sequence[Tensor]:
        """As for `Head`; each forward pass reads STARTS rounds."""
        features, size, states = self.read(hidden), self.config.block_size, []
        text, block_positions = (torch.arange(count, device=features.device) for count in (features.shape[1], size))
        for part in before.split(STARTS):
            block = self.enter(target, tokens[:, part], features[:, part - 1]).flatten(1, 2)
            round_of = torch.arange(len(part), device=features.device).repeat_interleave(size)
            positions = (part[:, None] + block_positions).flatten()[None]
            mask = torch.cat([text < part[round_of, None], round_of == round_of[:, None]], dim=1)
            for layer in self.layers:
                block = layer(block, positions, partial(after, layer.self_attn.context(features, text[None]), mask))
            states.append(self.by_depth(self.norm(block).view(len(features), len(part), size, -1)))
        return torch.cat(states, dim=1).unbind(2)[:depth]


class MarkovHead(nn.Module):
    """DSpark's low-rank bias (arXiv 2607.05147): p_k(v) at depth k after a token x is proportional to
    exp(U_k(v) + W1[x] W2[v]), where U_k are the block's logits, so that every node has a distribution of its own.

    markov_w1: W1, a row for each of the target's tokens (config.markov_of_all, in published heads), else one for each
    token that the head drafts, and a last one for all others. markov_w2: W2.
    """

    def __init__(self, config):
        super().__init__()
        drafted = config.draft_vocab_size
        self.of_all = not drafted or getattr(config, "markov_of_all", False)
        self.markov_w1 = nn.Embedding(config.vocab_size if self.of_all else drafted + 1, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, drafted or config.vocab_size, bias=False)
        nn.init.zeros_(self.markov_w2.weight)  # a new head is its block

    def forward(self, before: Tensor, tokens: Tensor | None) -> Tensor:
        """[..., K], of the tokens int64[...] before; tokens int64[K]: those that the head drafts."""
        if not self.of_all:
            row = torch.searchsorted(tokens, before).clamp_max(len(tokens) - 1)
            before = row.where(tokens[row] == before, len(tokens))
        return self.markov_w2(self.markov_w1(before))


def after(context: tuple[Tensor, Tensor], mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention to keys and values [B, Hkv, T, d] of a text, and to those of the block; mask bool[m, T + m]."""
    keys, values = (torch.cat(parts, dim=2) for parts in zip(context, (key, value)))
    return tree_attention(query, keys, values, mask, 0).transpose(1, 2)
