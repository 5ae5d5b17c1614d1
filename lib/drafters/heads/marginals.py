"""Heads that give one distribution for each depth ahead: Medusa's, and block heads."""

from typing import Callable, Mapping, Sequence

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
    section 2.1.1). Submodules have the names of published files: a number for each head.

    config: hidden_size, medusa_num_heads (K), medusa_num_layers (blocks of a head), and outputs_per_head: whether every
    head ends in an output layer of its own, as in version 1 of the published layout; else all share the target's.
    """

    def __init__(self, config):
        super().__init__(config)
        hidden, self.blocks, self.depth = config.hidden_size, config.medusa_num_layers, config.medusa_num_heads
        self.has_outputs = bool(getattr(config, "outputs_per_head", False))
        rows = getattr(config, "draft_vocab_size", None) or config.vocab_size
        for number in range(self.depth):
            parts = [ResidualBlock(hidden) for _ in range(self.blocks)]
            parts += [nn.Linear(hidden, rows, bias=False)] if self.has_outputs else []
            self.add_module(str(number), nn.Sequential(*parts))

    def states(self, hidden: Tensor, depth: int | None = None) -> Tensor:
        """The inputs [..., K, H] of the output layers, from last hidden states [..., H] of the target; K <= `depth`."""
        stacks = [self.get_submodule(str(number)) for number in range(self.depth)]
        return torch.stack([stack[: self.blocks](hidden) for stack in stacks[:depth]], dim=-2)

    def logits(self, states: Tensor, output: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., K, V] of states [..., K, H]; `output` is the target's output layer, unless the heads have their own."""
        if not self.has_outputs:
            return output(states)
        return torch.stack([self.get_submodule(str(number))[-1](state)
                            for number, state in enumerate(states.unbind(-2))], dim=-2)


class BlockHead(Head):
    """Predicts all depths in one forward pass: DFlash's head (arXiv 2602.06036) and DSpark's (arXiv 2607.05147).

    Its block is the root's embedding and, for the places after it, that of a mask token. It attends to itself, in both
    directions, and to the target's fused features of all tokens before the root. A place of DFlash's block predicts its
    own token, and the root's place nothing; one of DSpark's (config.shifted) the token after its own. With a Markov
    head, DSpark's, p_k(v) at depth k after a token x is proportional to exp(U_k(v) + B(x, v)), where U_k are the
    block's logits.

    config: a LlamaConfig with feature_layers (indices into the target's hidden states), block_size (places P),
    qk_norm, shifted, markov_rank, and learned_places: the places after the root have learned embeddings, and the newest
    feature is added to all, as in the head that ships.
    mask_embedding: float[H], that of the mask token, config.mask_token_id.
    """

    def __init__(self, config):
        super().__init__(config)
        self.fc = nn.Linear(len(config.feature_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.place_embeddings = None
        if getattr(config, "learned_places", False):
            self.place_embeddings = nn.Parameter(0.02 * torch.randn(config.block_size - 1, config.hidden_size))
        self.register_buffer("mask_embedding", torch.zeros(config.hidden_size), persistent=False)
        self.layers = nn.ModuleList(HeadLayer(config, config.hidden_size) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.markov_head = MarkovHead(config) if getattr(config, "markov_rank", 0) else None

    @property
    def depth(self) -> int:
        """D: depths ahead that the head predicts."""
        return self.config.block_size - (not self.config.shifted)

    def bias(self, before: Tensor) -> Tensor | None:
        """What the tokens int64[...] before add to the logits, [..., K]; None without a Markov head."""
        return None if self.markov_head is None else self.markov_head(before, self.tokens)

    def sees(self) -> Tensor:
        """bool[P, P]: the places of its block that each of its P places attends to, which are all."""
        size = self.config.block_size
        return torch.ones(size, size, dtype=torch.bool, device=self.fc.weight.device)

    def read(self, hidden_states: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """The fused and normed features [B, T, H]; hidden states by their index."""
        return self.hidden_norm(self.fc(torch.cat([hidden_states[layer] for layer in self.config.feature_layers], -1)))

    def enter(self, roots: Tensor, newest: Tensor) -> Tensor:
        """The block's inputs [..., P, H], of root embeddings and the features of the tokens before them, [..., H]."""
        masks = self.mask_embedding.expand(self.config.block_size - 1, -1)
        places = masks if self.place_embeddings is None else self.place_embeddings
        block = torch.cat([roots[..., None, :], places.expand(*roots.shape[:-1], -1, -1)], dim=-2)
        return block if self.place_embeddings is None else block + newest[..., None, :]

    def by_depth(self, states: Tensor) -> Tensor:
        """The states [..., D, H] that predict depths 1 .. D, of those of all places [..., P, H]."""
        return states if self.config.shifted else states[..., 1:, :]

    def states_along(self, features: Tensor, roots: Tensor, before: Tensor) -> Tensor:
        """The blocks of S rounds that start along known texts, in one forward: [B, S, D, H].

        features [B, T, H]: of the texts' tokens; roots [B, S, H]: the embeddings of the rounds' roots; before int64[S]:
        the number of tokens before each root, 1 to T, whose features the round may read.
        """
        (batch, length), count, sees = features.shape[:2], len(before), self.sees()
        block = self.enter(roots, features[:, before - 1]).flatten(1, 2)
        text_positions = torch.arange(length, device=features.device)[None]
        block_of = torch.arange(count, device=features.device).repeat_interleave(len(sees))
        positions = (before[:, None] + torch.arange(len(sees), device=features.device)).flatten()[None]
        mask = torch.cat([text_positions < before[block_of, None], torch.block_diag(*[sees] * count)], dim=1)
        angles = self.layers[0].self_attn.rotary(features, text_positions)
        for layer in self.layers:
            block = layer(block, positions, after(layer.self_attn.context(features, *angles), mask))
        return self.by_depth(self.norm(block).view(batch, count, len(sees), -1))


class MarkovHead(nn.Module):
    """DSpark's low-rank bias B(x, v) = W1[x] W2[v] from the token before (arXiv 2607.05147), which gives every node of
    a tree a distribution of its own for a product of config.markov_rank numbers.

    markov_w1: W1, a row for each of the target's tokens (config.markov_of_all, in published heads), else one for each
    token that the head drafts, and a last one for all others. markov_w2: W2.
    """

    def __init__(self, config):
        super().__init__()
        drafted = getattr(config, "draft_vocab_size", None)
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


def after(context: tuple[Tensor, Tensor], mask: Tensor) -> Attend:
    """Attention to the keys and values [B, Hkv, T, d] of a text, and to those of the block; mask bool[m, T + m]."""
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat(parts, dim=2) for parts in zip(context, (key, value)))
        return tree_attention(query, keys, values, mask, 0).transpose(1, 2)

    return attend
