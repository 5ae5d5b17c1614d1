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
        """The input of attention: the normed input of the layer."""
        return self.input_layernorm(x)


class BlockHead(Head):
    """Predicts all depths in one forward pass (DFlash's idea, without diffusion steps).

    Its block is the root's embedding and learned ones for the places after it. It attends to itself, in both directions
    or (config.causal) backwards alone, as JetSpec's head does (arXiv 2606.18394), and to the target's fused features of
    all tokens before the root. With a `markov` part it is DSpark's semi-autoregressive head (arXiv 2607.05147): of the
    token x before depth k, p_k(v) is proportional to exp(U_k(v) + B(x, v)), where U_k are the block's logits.
    config: a LlamaConfig with feature_layers (indices into the target's hidden states), block_size (depths D), and for
    the last markov_rank and, for `sure`, confidence.
    """

    def __init__(self, config):
        super().__init__(config)
        self.fc = nn.Linear(len(config.feature_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.feature_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.place_embeddings = nn.Parameter(0.02 * torch.randn(config.block_size - 1, config.hidden_size))
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.markov = Markov(config) if getattr(config, "markov_rank", 0) else None
        self.confidence = self.candidate_selector = None
        if getattr(config, "confidence", False):
            self.confidence = nn.Linear(config.hidden_size + config.markov_rank, 1)
            self.register_buffer("temperatures", torch.ones(config.block_size))

    @property
    def depth(self) -> int:
        """D: depths ahead that the head predicts."""
        return self.config.block_size - (not self.shifted)

    @property
    def shifted(self) -> bool:
        """Whether a place predicts the token after its own; else it predicts its own, and the root's place nothing."""
        return getattr(self.config, "shifted", True)

    @property
    def window(self) -> int | None:
        """The longest text of which all places of a block see everything; None without a limit."""
        sliding = getattr(self.config, "sliding_window", None)
        return max(1, sliding - self.config.block_size) if sliding else None

    def scaled(self, logits: Tensor) -> Tensor:
        """The logits of the output layer, multiplied and capped as the config says."""
        if multiplier := getattr(self.config, "output_multiplier", None):
            logits = logits * multiplier
        cap = getattr(self.config, "final_logit_softcapping", None)
        return (logits / cap).tanh() * cap if cap else logits

    def bias(self, before: Tensor) -> Tensor | None:
        """What the tokens int64[...] before add to the logits, [..., K]; None without a `markov` part."""
        return None if self.markov is None else self.markov(before, self.tokens)

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        """The logit [...] of the chance that the target accepts the head's token after the tokens int64[...] before,
        from the states [..., H] that predict it (DSpark's confidence); None without such a part.
        """
        if self.confidence is None:
            return None
        return self.confidence(torch.cat([states, self.markov.embedded(before, self.tokens)], dim=-1))[..., 0]

    @property
    def reads(self) -> set[int]:
        """The hidden states that `read` takes."""
        return set(self.config.feature_layers)

    def sees(self) -> Tensor:
        """bool[P, P]: the places of its block that each of its P places attends to."""
        size = self.config.block_size
        every = torch.ones(size, size, dtype=torch.bool, device=self.fc.weight.device)
        return every.tril() if getattr(self.config, "causal", False) else every

    def read(self, hidden_states: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """The fused and normed features [B, T, H]; hidden states by their index."""
        return self.feature_norm(self.fc(torch.cat([hidden_states[layer] for layer in self.config.feature_layers], -1)))

    def enter(self, roots: Tensor, newest: Tensor) -> Tensor:
        """The block's inputs [..., P, H], of root embeddings and the features of the tokens before them, [..., H].

        The newest feature is added to every place: one layer needs it on its residual path.
        """
        places = self.place_embeddings.expand(*roots.shape[:-1], -1, -1)
        return torch.cat([roots[..., None, :], places], dim=-2) + newest[..., None, :]

    def by_depth(self, states: Tensor) -> Tensor:
        """The states [..., D, H] that predict depths 1 .. D, of those of all places [..., P, H]."""
        return states if self.shifted else states[..., 1:, :]

    def states_along(self, features: Tensor, roots: Tensor, before: Tensor) -> Tensor:
        """The blocks of S rounds that start along known texts, in one forward: [B, S, D, H].

        features [B, T, H]: of the texts' tokens; roots [B, S, H]: the embeddings of the rounds' roots; before int64[S]:
        the number of tokens before each root, 1 to T, whose features the round may read.
        """
        (batch, length), count, sees = features.shape[:2], len(before), self.sees()
        block = self.enter(roots, features[:, before - 1]).flatten(1, 2)
        place = torch.arange(length, device=features.device)[None]
        own = torch.arange(count, device=features.device).repeat_interleave(len(sees))
        positions = (before[:, None] + torch.arange(len(sees), device=features.device)).flatten()[None]
        text = place < before[own, None]
        if sliding := getattr(self.config, "sliding_window", None):
            text &= positions.mT - place < sliding
        mask = torch.cat([text, torch.block_diag(*[sees] * count)], dim=1)
        angles = self.layers[0].self_attn.rotary(features, place)
        for layer in self.layers:
            block = layer(block, positions, after(layer.self_attn.context(features, *angles), mask))
        return self.by_depth(self.norm(block).view(batch, count, len(sees), -1))


class Markov(nn.Module):
    """DSpark's low-rank bias B(x, v) = W1[x] W2[v] from the token before (arXiv 2607.05147), which gives every node of
    a tree a distribution of its own for a product of config.markov_rank numbers.

    embed: W1, a row for each of the target's tokens (config.markov_of_all, in published heads), else one for each token
    that the head drafts, and a last one for all others. head: W2.
    """

    def __init__(self, config):
        super().__init__()
        drafted = getattr(config, "draft_vocab_size", None)
        self.of_all = not drafted or getattr(config, "markov_of_all", False)
        self.embed = nn.Embedding(config.vocab_size if self.of_all else drafted + 1, config.markov_rank)
        self.head = nn.Linear(config.markov_rank, drafted or config.vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)  # a new head is its block

    def forward(self, before: Tensor, tokens: Tensor | None) -> Tensor:
        """[..., K], of the tokens int64[...] before; tokens int64[K]: those that the head drafts."""
        return self.head(self.embedded(before, tokens))

    def embedded(self, before: Tensor, tokens: Tensor | None) -> Tensor:
        """The rows [..., rank] of W1."""
        if not self.of_all:
            row = torch.searchsorted(tokens, before).clamp_max(len(tokens) - 1)
            before = row.where(tokens[row] == before, len(tokens))
        return self.embed(before)


class DFlashHead(BlockHead):
    """A block head as DFlash's, JetSpec's and DSpark's authors publish them: the places after the root have the
    embedding of a mask token, queries and keys are normed, and the newest feature is not added.

    mask_embedding float[H]: that of the mask token. config.shifted: as in DSpark's (see `shifted`).
    config.sliding_window: a place attends to that many positions, its own the last; None for all.
    config.input_embedding_scale, output_multiplier and final_logit_softcapping: as of Gemma's and other targets.
    """

    def __init__(self, config):
        super().__init__(config)
        self.place_embeddings = None
        self.register_buffer("mask_embedding", torch.zeros(config.hidden_size), persistent=False)

    def enter(self, roots: Tensor, newest: Tensor) -> Tensor:
        """The block's inputs [..., P, H]: root embeddings [..., H], and the mask's at the other places."""
        masks = self.mask_embedding.expand(*roots.shape[:-1], self.config.block_size - 1, -1)
        scale = getattr(self.config, "input_embedding_scale", None) or 1
        return torch.cat([roots[..., None, :], masks], dim=-2) * scale


def after(context: tuple[Tensor, Tensor], mask: Tensor) -> Attend:
    """Attention to the keys and values [B, Hkv, T, d] of a text, and to those of the block; mask bool[m, T + m]."""
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat(parts, dim=2) for parts in zip(context, (key, value)))
        return tree_attention(query, keys, values, mask, 0).transpose(1, 2)

    return attend
