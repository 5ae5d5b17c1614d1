"""The layers of heads. What their attention attends to is a function that each use brings: a cache of the drafter, or a
text in one forward pass.
"""

from typing import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    rotate_half,
)

from lib.attention.masks import SharedMask, causal
from lib.attention.registration import attention_forward
from lib.forward.native import NativeBlocks
from lib.kernels.build import served
from lib.models.cache import TreeCache

# (query [B, Hq, T, d], key and value [B, Hkv, T, d]) -> [B, T, Hq, d]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Head(nn.Module):
    """The base of heads.

    tokens: int64[K], ascending, the tokens of the target that a head drafts (config.draft_vocab_size of them); None for
        all.
    lm_head, embed_tokens: an output layer and an embedding of its own (config.own_output, config.own_embedding); None
        where it shares the target's, of the output layer the rows of its tokens.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        count, hidden = getattr(config, "draft_vocab_size", None), config.hidden_size
        self.register_buffer("tokens", torch.arange(count) if count else None)
        self.lm_head = self.embed_tokens = None
        if getattr(config, "own_output", False):
            self.lm_head = nn.Linear(hidden, count or config.vocab_size, bias=False)
        if getattr(config, "own_embedding", False):
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)

    def bias(self, before: Tensor) -> Tensor | None:
        """What the tokens int64[...] before add to the logits, [..., K]; None for nothing."""
        return None


def embed(head: Head, target, tokens: Tensor) -> Tensor:
    """Tokens int64[...] by the head's own embedding, else by the target's: [..., H]."""
    embedding = target.get_input_embeddings() if head.embed_tokens is None else head.embed_tokens
    return embedding(tokens)


class HeadAttention(nn.Module):
    """Projections and rotary positions of a LlamaConfig; queries, keys and values come from inputs of any width.

    config.qk_norm: whether queries and keys are normed, as Qwen3 does.
    """

    def __init__(self, config, inputs: int):
        super().__init__()
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        bias = bool(getattr(config, "attention_bias", False))
        widths = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        for name, heads in widths.items():
            setattr(self, f"{name}_proj", nn.Linear(inputs, heads * self.head_dim, bias=bias))
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)
        normed = getattr(config, "qk_norm", False)
        self.q_norm, self.k_norm = (LlamaRMSNorm(self.head_dim, config.rms_norm_eps) if normed else None for _ in "qk")
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x [B, T, inputs] at positions int64[B or 1, T] to [B, T, H]."""
        query, key, value = self._heads(self.q_proj(x), self.q_norm), *self._keys_and_values(x)
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(query, positions))
        return self.o_proj(attend(query, key, value).flatten(2))

    def context(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, Hkv, T, d] of x [B, T, inputs], for other tokens to attend to; cosines and sines
        [B or 1, T, d]: those of `rotary`.
        """
        key, value = self._keys_and_values(x)
        cosines, sines = (table[:, None].to(key.dtype) for table in (cosines, sines))  # in autocast x may be float32
        return key * cosines + rotate_half(key) * sines, value

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.k_proj(x), self.k_norm), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim))
        # In autocast a norm gives float32.
        return (heads if norm is None else norm(heads).to(heads.dtype)).transpose(1, 2)


class HeadLayer(nn.Module):
    """A Llama layer whose attention may read another input than the layer's, of any width."""

    def __init__(self, config, inputs: int):
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = HeadAttention(config, inputs)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend, read: Tensor | None = None) -> Tensor:
        """x [B, T, H] at positions int64[B or 1, T] to [B, T, H]; read [B, T, inputs]: the input of attention, by
        default the normed x.
        """
        x = x + self.self_attn(self.input_layernorm(x) if read is None else read, positions, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class CachedLayers:
    """A head's layers over blocks of tokens after a cache: in C++ where this machine can run them, else in PyTorch.

    norm: applied to their outputs, or None. Make it anew when weights have changed.
    """

    def __init__(self, layers: Sequence[HeadLayer], norm: nn.Module | None = None):
        self.layers, self.norm, rotary = layers, norm, layers[0].self_attn.rotary
        self.native = served(NativeBlocks, layers, rotary, norm, None)

    def __call__(self, x: Tensor, offsets: Tensor, cache: TreeCache, mask: Tensor | None,
                 read: Tensor | None = None) -> Tensor:
        """x [B, T, H] at positions int64[T] or [B, T] after each row's committed slots, appended to the cache, to
        [B, T, H]; read: as the first layer takes it.

        mask bool[T, pending + T] or [B, T, pending + T]: the pending slots that each token attends to besides all
        committed ones; None for a causal block right after the committed slots.
        """
        if self.native is None or torch.is_grad_enabled() or len(x) * x.shape[1] > self.native.most_rows:
            positions = (cache.lengths[:, None] if cache.layers else offsets.new_zeros(len(x), 1)) + offsets
            for index, layer in enumerate(self.layers):
                x = layer(x, positions, cached(layer.self_attn, cache, index, mask), read)
                read = None
            return x if self.norm is None else self.norm(x)
        seen = SharedMask(causal(x.shape[1], cache.pending) if mask is None else mask)
        return self.native(x, offsets, cache, seen, all_states=True, read=read)[1][-1]

    def take(self, x: Tensor, cache: TreeCache) -> None:
        """Appends the keys and values of x [B, T, inputs] to the cache, after each row's slots, in every layer: what
        later blocks attend to.
        """
        attention = self.layers[0].self_attn
        before = cache.lengths[:, None] if cache.layers else torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
        positions = before + torch.arange(x.shape[1], device=x.device)
        if self.native is None:
            angles = attention.rotary(x, positions)
        else:  # tables, which take a tenth of the time of the module that makes them
            tables = self.native.angles.up_to(cache.rows.longest + x.shape[1])
            angles = [table[positions].repeat(1, 1, 2).to(x.dtype) for table in tables]
        for index, layer in enumerate(self.layers):
            cache.update(*layer.self_attn.context(x, *angles), index)


def cached(module: HeadAttention, cache: TreeCache, layer: int, mask: Tensor | None) -> Attend:
    """Appends to a layer of the cache and attends to its committed slots, and to the pending ones of `mask`.

    mask bool[T, pending + T] or [B, T, pending + T]; None for a causal block right after the committed slots.
    """
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        prefix = cache.rows.as_list or [0]
        keys, values = cache.update(key, value, layer)
        tree_mask = None if mask is None else SharedMask(mask)
        return attention_forward(module, query, keys, values, None, scaling=module.head_dim**-0.5,
                                 tree_mask=tree_mask, prefix_length=torch.tensor(prefix))[0]

    return attend


class Unrolled:
    """Attention of a head that is unrolled along a known text from every index at once (EAGLE-3, section 3.2).

    The first call is the text itself, causal. The d-th call afterwards is the d-th step ahead of every index: it
    attends to the text up to its index, and to the steps of its index.
    """

    def __init__(self):
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group, length = query.shape[1] // key.shape[1], query.shape[2]
        self.keys.append(key.repeat_interleave(group, 1))
        self.values.append(value.repeat_interleave(group, 1))
        causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        text = (query @ self.keys[0].mT).masked_fill(~causal, float("-inf"))
        steps = [(query * step).sum(-1, keepdim=True) for step in self.keys[1:]]
        weights = (torch.cat([text, *steps], dim=-1) * query.shape[-1] ** -0.5).softmax(-1)
        out = weights[..., :length] @ self.values[0]
        for step, values in enumerate(self.values[1:]):
            out = out + weights[..., length + step, None] * values
        return out.transpose(1, 2)
