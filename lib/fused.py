"""Llama-like models with fewer and better kernels for small blocks: what a round of a small pair spends its time on.

`fused` gives a stand-in for a model: blocks behind a prefix run over joined and packed weights (query, key and value in
one product; gate and up in one), with the rotation of queries and keys in one piece, and attention's backend chosen
once a forward; all else (prefills, gradients, float64) is the model's own. It says the same within rounding. The joined
weights are a second copy, so that models that fill the memory run as they are.
"""

from dataclasses import dataclass
from itertools import chain
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.attention import auto
from lib.attention_backends import BACKENDS, SharedMask
from lib.packed import Linear, joined, joined_bytes
from lib.timing import free_memory

MOST = 0.25  # of the free memory that weights may take to be held a second time
KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROTATIONS = ("default", "linear", "llama3", "yarn")  # whose angles do not depend on the text's length
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 is for oracles: transformers' own code


@dataclass(frozen=True)
class Layer:
    """What a decoder layer computes with; norms of queries and keys where it has them (Qwen3)."""

    input_norm: nn.Module
    query_key_value: Linear
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    out: Linear
    middle_norm: nn.Module
    gate_up: Linear
    down: Linear
    heads: tuple[int, int, int]  # query heads, key heads, their size
    scale: float


@dataclass(frozen=True)
class Kernels:
    """A model's layers and output layer, joined and packed; `made_of` says of which weights."""

    layers: tuple[Layer, ...]
    output: Linear
    made_of: tuple


@dataclass(frozen=True)
class BlockOutput:
    """What a block gives: logits [B, m or fewer, V]; hidden states as transformers orders them, where asked for."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None


_KNOWN: WeakKeyDictionary[nn.Module, Kernels] = WeakKeyDictionary()


def fused(model):
    """A stand-in for the model, which is kept as long as its weights are the same; itself where there is none."""
    kernels = None if refusal(model) else _kernels_of(model)
    return model if kernels is None else FusedBlocks(model, kernels)


def output_layer(model) -> Linear:
    """The model's output layer for few rows, [..., H] -> [..., V], without gradients where the model can be fused."""
    kernels = None if refusal(model) else _kernels_of(model)
    return model.get_output_embeddings() if kernels is None else kernels.output


def copied_bytes(model) -> int:
    """Bytes of weights that a fused model holds a second time; 0 for one that runs as it is."""
    if refusal(model) or _fills_the_memory(model):
        return 0
    return sum(map(joined_bytes, (*chain.from_iterable(map(_groups, model.model.layers)), [model.lm_head])))


def refusal(model) -> str | None:
    """Why a model runs as transformers wrote it; None where its blocks can be fused."""
    if type(model).__name__ not in KINDS:
        return f"{type(model).__name__} is none of {', '.join(KINDS)}"
    config = model.config
    if model.dtype not in DTYPES:
        return f"its weights are {model.dtype}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rotation = getattr(model.model.rotary_emb, "rope_type", "default")
    return None if rotation in ROTATIONS else f"its rotation {rotation!r} depends on the text's length"


class FusedBlocks:
    """A model whose blocks behind a prefix run fused; otherwise it is the model (`config`, `device`, `generate`, ...)."""

    def __init__(self, model, kernels: Kernels):
        self.model, self.kernels = model, kernels

    def __getattr__(self, name: str):
        return getattr(self.__dict__["model"], name)

    def __call__(self, input_ids: Tensor, position_ids: Tensor, *, past_key_values, tree_mask=None, **kwargs):
        """As the model's, for `attention.tree_forward`."""
        begun = len(past_key_values.layers) == len(self.kernels.layers)  # a first forward makes them
        if tree_mask is None or not begun or torch.is_grad_enabled() or "tree_backend" in kwargs:
            return self.model(input_ids=input_ids, position_ids=position_ids, past_key_values=past_key_values,
                              tree_mask=tree_mask, **kwargs)
        return self._block(input_ids, position_ids, past_key_values, tree_mask, kwargs.get("logits_to_keep", 0),
                           bool(kwargs.get("output_hidden_states")))

    def _block(self, tokens: Tensor, positions: Tensor, cache, mask: SharedMask, keep: int | Tensor,
               all_states: bool) -> BlockOutput:
        """tokens and positions int64[B, m]: one forward behind the cache's rows."""
        decoder, prefix = self.model.model, cache.rows.as_list
        state = F.embedding(tokens, decoder.embed_tokens.weight)
        cos, sin = decoder.rotary_emb(state, position_ids=positions)
        half = sin.shape[-1] // 2
        rotation = cos[:, :, None], torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)[:, :, None]
        states, attend = [state], None
        for layer, stored in zip(self.kernels.layers, cache.layers):
            query, key, value = _projected(layer, state, rotation)
            key, value = stored.update(key, value)
            if attend is None:
                attend = BACKENDS[auto(query, key, value, max(prefix))]
            seen, _ = attend(query, key, value, mask, prefix, layer.scale, False)
            state = state + layer.out(seen.transpose(1, 2).flatten(2))
            gate, up = layer.gate_up(_normed(layer.middle_norm, state)).chunk(2, dim=-1)
            state = state + layer.down(F.silu(gate) * up)
            if all_states:
                states.append(state)
        kept = slice(-keep or None, None) if isinstance(keep, int) else keep  # 0 is all
        if not all_states:
            return BlockOutput(self.kernels.output(_normed(decoder.norm, state[:, kept])), None)
        states[-1] = _normed(decoder.norm, state)
        return BlockOutput(self.kernels.output(states[-1][:, kept]), tuple(states))


def _projected(layer: Layer, state: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated query [B, Hq, m, d] and key, and value [B, Hkv, m, d]."""
    queries, keys, size = layer.heads
    every = layer.query_key_value(_normed(layer.input_norm, state)).unflatten(-1, (queries + 2 * keys, size))
    turned, value = every[:, :, : queries + keys], every[:, :, queries + keys :]
    if layer.query_norm is not None:
        turned = torch.cat([_normed(layer.query_norm, turned[:, :, :queries]),
                            _normed(layer.key_norm, turned[:, :, queries:])], dim=2)
    cos, signed_sin = rotation  # x cos + (-x2, x1) sin: rolled by half a head, the sign in the sine
    turned = (turned * cos + turned.roll(size // 2, -1) * signed_sin).transpose(1, 2)
    return turned[:, :queries], turned[:, queries:], value.transpose(1, 2)


def _normed(norm: nn.Module, state: Tensor) -> Tensor:
    return F.rms_norm(state, (state.shape[-1],), norm.weight, norm.variance_epsilon)


def _kernels_of(model) -> Kernels | None:
    """The model's kernels, as long as its weights are the same; None where they would take too much memory."""
    known = _KNOWN.get(model)
    if known is None or known.made_of != _weights(model):
        known = _KNOWN[model] = _kernels(model)
    return known if known.layers else None


def _kernels(model) -> Kernels:
    """Without layers where the weights are too large to be held twice."""
    if _fills_the_memory(model):
        return Kernels((), model.lm_head, _weights(model))
    return Kernels(tuple(map(_layer, model.model.layers)), joined([model.lm_head]), _weights(model))


def _fills_the_memory(model) -> bool:
    """Whether the weights are too large to be held twice; not if they are held twice already."""
    if (known := _KNOWN.get(model)) is not None:
        return not known.layers
    return sum(weight.nbytes for weight in model.parameters()) > MOST * free_memory(model.device)


def _groups(layer) -> list[list[nn.Module]]:
    """The linear layers of a decoder layer, those of one input together."""
    attention, mlp = layer.self_attn, layer.mlp
    return [[attention.q_proj, attention.k_proj, attention.v_proj], [attention.o_proj], [mlp.gate_proj, mlp.up_proj],
            [mlp.down_proj]]


def _layer(layer) -> Layer:
    attention, size = layer.self_attn, layer.self_attn.head_dim
    query_key_value, out, gate_up, down = map(joined, _groups(layer))
    heads = tuple(projection.weight.shape[0] // size for projection in (attention.q_proj, attention.k_proj))
    return Layer(
        input_norm=layer.input_layernorm,
        query_key_value=query_key_value,
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        out=out,
        middle_norm=layer.post_attention_layernorm,
        gate_up=gate_up,
        down=down,
        heads=(*heads, size),
        scale=attention.scaling,
    )


def _weights(model) -> tuple:
    """What kernels were made of: where every weight lies, its dtype, and how often it was written to."""
    return tuple((weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version)
                 for weight in (*model.parameters(), *model.buffers()))
