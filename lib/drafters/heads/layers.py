"""The layers of heads. Each use brings a function for what they attend to: a drafter's cache, or a text at once."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from lib.attention.masks import SharedMask, causal
from lib.attention.registration import attention_forward
from lib.forward.native import NativeBlocks
from lib.kernels.build import served
from lib.models.cache import TreeCache

# (query [B, Hq, T, d], key and value [B, Hkv, T, d]) -> [B, T, Hq, d]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Head(nn.Module):
    """The base of heads. A kind defines `along(target, hidden, tokens, before, depth)`: for d = 0, 1, ... the states
    [B, S, H] that predict the tokens d + 1 after each root, in rounds that start along texts and follow them. hidden:
    the target's hidden states [B, T, H] by layer; tokens int64[B, T + depth]; before int64[S], ascending: the number of
    tokens before each root, 1 to T - 1, whose hidden states the round may read.

    tokens: int64[K], ascending, the tokens of the target that a head drafts; None for all. lm_head, embed_tokens: an
    output layer of these tokens and an embedding, where the file has them; None where the target's serve the head too.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        count, hidden = config.draft_vocab_size, config.hidden_size
        self.register_buffer("tokens", torch.arange(count) if count else None)
        self.lm_head = self.embed_tokens = self.markov_head = None
        if getattr(config, "own_output", False):
            self.lm_head = nn.Linear(hidden, count or config.vocab_size, bias=False)
        if getattr(config, "own_embedding", False):
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)

    def biased(self, logits: Tensor, before: Tensor) -> Tensor:
        """Logits [..., K] after tokens int64[...], to which a Markov head adds."""
        return logits if self.markov_head is None else logits + self.markov_head(before.to(logits.device), self.tokens)


def embed(head: Head, target, tokens: Tensor) -> Tensor:
    """Tokens int64[...] by the head's own embedding, else by the target's: [..., H]."""
    embedding = target.get_input_embeddings() if head.embed_tokens is None else head.embed_tokens
    return embedding(tokens)


class HeadAttention(nn.Module):
    """Llama's attention over inputs of any width; with config.qk_norm queries and keys are normed, as by Qwen3."""

    def __init__(self, config, inputs: int):
        super().__init__()
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        width, key_width = (heads * self.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(inputs, width, bias=config.attention_bias)
        self.k_proj, self.v_proj = (nn.Linear(inputs, key_width, bias=config.attention_bias) for _ in "kv")
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        normed = getattr(config, "qk_norm", False)
        self.q_norm, self.k_norm = (LlamaRMSNorm(self.head_dim, config.rms_norm_eps) if normed else None for _ in "qk")
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x [B, T, inputs] at positions int64[B or 1, T] to [B, T, H]."""
        query, key, value = self._heads(self.q_proj(x), self.q_norm), *self._keys_and_values(x)
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(query, positions))
        return self.o_proj(attend(query, key, value).flatten(2))

    def context(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, Hkv, T, d] of x [B, T, inputs] at positions int64[B or 1, T], for others to attend to."""
        key, value = self._keys_and_values(x)
        return apply_rotary_pos_emb(key, key, *self.rotary(key, positions))[0], value

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.k_proj(x), self.k_norm), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim))  # in autocast a norm gives float32
        return (heads if norm is None else norm(heads).to(heads.dtype)).transpose(1, 2)


class HeadLayer(nn.Module):
    """A Llama layer whose attention may read another input, of any width."""

    def __init__(self, config, inputs: int):
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = HeadAttention(config, inputs)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend, read: Tensor | None = None) -> Tensor:
        """x [B, T, H] at positions int64[B or 1, T] to [B, T, H]; attention reads `read` [B, T, inputs] or normed x."""
        x = x + self.self_attn(self.input_layernorm(x) if read is None else read, positions, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class CachedLayers:
    """A head's layers, and a norm of their outputs if any, over blocks of tokens after a cache: in C++ where this
    machine can run them, else in PyTorch. Make it anew when weights have changed.
    """

    def __init__(self, layers: Sequence[HeadLayer], norm: nn.Module | None = None):
        self.layers, self.norm, rotary = layers, norm, layers[0].self_attn.rotary
        self.native = served(NativeBlocks, layers, rotary, norm, None)

    def __call__(self, x: Tensor, offsets: Tensor, cache: TreeCache, mask: Tensor | None,
                 read: Tensor | None = None) -> Tensor:
        """x [B, T, H], `offsets` int64[T] or [B, T] after each row's committed slots, to [B, T, H]; appends it to the
        cache. mask bool[T, pending + T] or [B, T, pending + T]: the pending slots that each token attends to besides
        all committed ones; None for a causal block after these. read: as the first layer takes it.
        """
        if self.native is None or torch.is_grad_enabled() or len(x) * x.shape[1] > self.native.most_rows:
            positions, tree_mask = cache.lengths[:, None] + offsets, None if mask is None else SharedMask(mask)
            for index, layer in enumerate(self.layers):
                x = layer(x, positions, partial(cached, layer.self_attn, cache, index, tree_mask), read)
                read = None
            return x if self.norm is None else self.norm(x)
        tree_mask = SharedMask(causal(x.shape[1], cache.pending) if mask is None else mask)
        return self.native(x, offsets, cache, tree_mask, all_states=True, read=read)[1][-1]

    def take(self, x: Tensor, cache: TreeCache) -> None:
        """Appends keys and values of x [B, T, inputs], to which later blocks attend, in all layers."""
        positions = cache.lengths[:, None] + torch.arange(x.shape[1], device=x.device)
        for index, layer in enumerate(self.layers):
            cache.update(*layer.self_attn.context(x, positions), index)


def cached(module: HeadAttention, cache: TreeCache, layer: int, tree_mask: SharedMask | None,
           query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Appends to a layer of the cache; attends to committed slots, and to pending ones as `CachedLayers` has them."""
    prefix, (keys, values) = torch.tensor(cache.rows.as_list), cache.update(key, value, layer)
    return attention_forward(module, query, keys, values, None, scaling=module.head_dim**-0.5, tree_mask=tree_mask,
                             prefix_length=prefix)[0]


class Unrolled:
    """Attention of a head that is unrolled along a text from every index at once (EAGLE-3, section 3.2). The first call
    is the text, causal; the d-th after it, d steps ahead, attends to the text up to its index and its index's steps.
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
