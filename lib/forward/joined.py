"""Decoder layers of Llama's kind over few rows in PyTorch's operators, for processors without `lib.kernels`.

Query, key and value are one product over joined and packed weights, gate and up another; queries and keys are rotated
together, and the attention backend is chosen once per forward pass. The joined weights are a second copy.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.attention.backends import implementation
from lib.attention.backends.mask import SharedMask
from lib.attention.operator import choose_backend
from lib.forward.packed import Linear, Product, joined


class JoinedBlocks:
    """A causal language model's layers, last norm and output layer over a block after a cache's rows.

    copied_bytes: of weights that are held a second time. most_rows: of a prompt that they read: none. most_nodes: of a
    block: any.
    """

    most_rows, most_nodes = 0, math.inf

    def __init__(self, model, output: Linear):
        decoder = model.model
        self.layers = []
        for layer in decoder.layers:  # each with the products of its four inputs
            attention, mlp = layer.self_attn, layer.mlp
            groups = ([attention.q_proj, attention.k_proj, attention.v_proj], [attention.o_proj],
                      [mlp.gate_proj, mlp.up_proj], [mlp.down_proj])
            self.layers.append((layer, *map(joined, groups)))
        products = [output, *(product for _, *products in self.layers for product in products)]
        self.copied_bytes = sum(product.copied_bytes for product in products if isinstance(product, Product))
        self.embedding, self.output = decoder.embed_tokens, output
        self.rotary, self.norm = decoder.rotary_emb, decoder.norm

    def __call__(self, tokens: Tensor, offsets: Tensor, cache, mask: SharedMask, keep: int | Tensor,
                 all_states: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Logits [B, kept, V], and with `all_states` the states [B, m, H]: embeddings, each layer's, the last normed.

        tokens: int64[B, m]; offsets: int64[m] or [B, m], their positions after each row's prefix.
        keep: as transformers' logits_to_keep.
        """
        cache.settle()
        prefix, state = cache.rows.as_list, self.embedding(tokens)
        cos, sin = self.rotary(state, position_ids=cache.lengths[:, None] + offsets)
        half = sin.shape[-1] // 2
        rotation = cos[:, :, None], torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)[:, :, None]
        states, attend = [state], None
        for (layer, query_key_value, out, gate_up, down), stored in zip(self.layers, cache.layers):
            every = query_key_value(_normed(layer.input_layernorm, state))
            query, key, value = _rotated(layer.self_attn, every, rotation)
            key, value = stored.update(key, value)
            if attend is None:
                attend = implementation(choose_backend(query, key, value, prefix))
            seen, _ = attend(query, key, value, mask, prefix, layer.self_attn.scaling, False)
            state = state + out(seen.transpose(1, 2).flatten(2))
            gate, up = gate_up(_normed(layer.post_attention_layernorm, state)).chunk(2, dim=-1)
            state = state + down(F.silu(gate) * up)
            if all_states:
                states.append(state)
        wanted = slice(-keep or None, None) if isinstance(keep, int) else keep  # 0 is all
        if not all_states:
            return self.output(_normed(self.norm, state[:, wanted])), None
        states[-1] = _normed(self.norm, state)
        return self.output(states[-1][:, wanted]), tuple(states)


def _rotated(attention, every: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated query [B, Hq, m, d] and key, and value [B, Hkv, m, d], from all three, [B, m, (Hq + 2 Hkv) d]."""
    size = attention.head_dim
    queries, keys = (projection.out_features // size for projection in (attention.q_proj, attention.k_proj))
    turned, value = every.unflatten(-1, (-1, size)).split([queries + keys, keys], dim=2)
    if hasattr(attention, "q_norm"):  # of Qwen3
        turned = torch.cat([_normed(attention.q_norm, turned[:, :, :queries]),
                            _normed(attention.k_norm, turned[:, :, queries:])], dim=2)
    cos, signed_sin = rotation  # x cos + (-x2, x1) sin: rolled by half a head, the sign in the sine
    turned = (turned * cos + turned.roll(size // 2, -1) * signed_sin).transpose(1, 2)
    return turned[:, :queries], turned[:, queries:], value.transpose(1, 2)


def _normed(norm: nn.Module, state: Tensor) -> Tensor:
    return F.rms_norm(state, (state.shape[-1],), norm.weight, norm.variance_epsilon)
