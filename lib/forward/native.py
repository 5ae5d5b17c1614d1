"""Decoder layers over the few nodes of a draft tree in one call of C++ (`forward.h`), with the model's own weights:
layers of Llama's kind, and of Gemma's 2 and 3 (windows, capped scores, GELU, and norms of what a layer adds).
`NativeBlocks.fill` drafts a whole static tree in one call (`fill.h`).
"""

import ctypes
import math
from ctypes import c_float, c_int64, c_void_p
from typing import Sequence

import torch
from torch import Tensor, nn

from lib.attention.masks import SharedMask
from lib.attention.registration import FULL, SLIDING, window_of
from lib.forward.packed import PackedEmbedding, PackedLinear
from lib.kernels import build, products
from lib.kernels.build import CannotServe
from lib.kernels.products import NAMES, Matrix, check_weights, matrix_of, start_of

ROTATIONS = ("default", "linear", "llama3", "yarn")  # their angles do not depend on the text's length
ACTIVATIONS = {"SiLU": False, "SiLUActivation": False, "GELUTanh": True}  # torch's and transformers'; by tanh or not
ONE_MORE = {"Gemma2RMSNorm", "Gemma3RMSNorm"}  # whose factor is one more than the weight


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class LayerStruct(ctypes.Structure):
    """The struct `Layer` of `forward.h`."""

    _fields_ = [*_fields(c_void_p, "input_norm query_norm key_norm middle_norm attended_norm widened_norm"),
                *_fields(Matrix, "query key value output gate up down"), *_fields(c_int64, "near")]


class ViewStruct(ctypes.Structure):
    """The struct `View` of `forward.h`."""

    _fields_ = [*_fields(c_void_p, "cosines sines mask prefix"), *_fields(c_int64, "first tree_keys mask_stride")]


class ForwardStruct(ctypes.Structure):
    """The struct `Forward` of `forward.h`."""

    _fields_ = [
        *_fields(ctypes.POINTER(LayerStruct), "layers"),
        *_fields(c_void_p, "inputs final_norm tokens cosines sines offsets prefix kept names mask read stored states"),
        *_fields(c_void_p, "last logits attend"),
        *_fields(ViewStruct, "near"),
        *_fields(Matrix, "vocabulary embedding"),
        *_fields(c_int64, "depth batch nodes pending capacity hidden heads kv_heads dim"),
        *_fields(c_int64, "kept_rows mask_stride offset_stride threads tanh"),
        *_fields(c_float, "scale epsilon softcap embedding_scale"),
    ]


class LevelStruct(ctypes.Structure):
    """The struct `Level` of `fill.h`."""

    _fields_ = [*_fields(c_void_p, "slots offsets mask below"),
                *_fields(c_int64, "nodes children offset_stride mask_stride")]


class Levels:
    """The levels of a tree of `size` nodes as `NativeBlocks.fill` takes them, the root's first.

    levels: one tuple per level (slots, below, offsets, mask). slots: int64[k] of its nodes. below: int64[c, 3], for
        each of their children the parent's index in the level, its rank and its slot. offsets, mask: as a block of
        these nodes takes them; None for the first level.
    """

    def __init__(self, size: int, levels: Sequence[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]):
        self.size, self.forwarded = size, sum(len(slots) for slots, *_ in levels[1:])
        self.widest = max(len(slots) for slots, *_ in levels)
        # The structs hold addresses alone.
        self.tensors = [tuple(None if part is None else part.contiguous() for part in level) for level in levels]
        self.structs = (LevelStruct * len(levels))(*(
            LevelStruct(*map(start_of, (slots, offsets, mask, below)), len(slots), len(below), _stride(offsets, 1),
                        _stride(mask, 2)) for slots, below, offsets, mask in self.tensors))


def _check(layers: Sequence[nn.Module], rotary: nn.Module, output: nn.Module | None, embedding: nn.Module | None):
    """CannotServe, with the reason, for what `NativeBlocks` does not serve here."""
    linears = _linears(layers, output)
    norms = [norm for layer in layers for norm in _norms(layer).values() if norm is not None]
    kinds = getattr(rotary, "rope_type", "default")
    rotations = {*(kinds.values() if isinstance(kinds, dict) else [kinds])} - {*ROTATIONS}
    unlike = {type(part).__name__ for part in linears if type(part) not in (nn.Linear, PackedLinear)}
    activations = {type(layer.mlp.act_fn).__name__ for layer in layers} - {*ACTIVATIONS}
    head_dim = layers[0].self_attn.head_dim
    takes = all(part.panels.takes(norms[0].weight.dtype) for part in linears if isinstance(part, PackedLinear))
    unserved = [
        (rotations, f"its rotation {', '.join(sorted(rotations))} depends on the text's length"),
        (unlike, f"its projections are {', '.join(sorted(unlike))}"),
        (activations, f"its activation is {', '.join(sorted(activations))}, neither silu nor gelu by tanh"),
        (len({_window(layer) for layer in layers} - {None}) > 1, "its layers see windows of several sizes"),
        (head_dim % 8, f"its heads have {head_dim} numbers, no multiple of 8"),
        (not takes, f"its packed weights take no activations in {norms[0].weight.dtype}"),
        (any(len({isinstance(part, PackedLinear) and part.panels.form for part in (mlp.gate_proj, mlp.up_proj)}) == 2
             for mlp in (layer.mlp for layer in layers)), "gate and up have weights in different formats")]
    if reason := next((reason for applies, reason in unserved if applies), None):
        raise CannotServe(reason)
    check_weights([part.weight for part in (*linears, *norms, embedding)
                   if part is not None and not isinstance(part, PackedLinear | PackedEmbedding)])


class Angles:
    """Cosines and sines float32[P, d / 2] of a rotary embedding and kind of layers; P doubles as texts grow."""

    def __init__(self, rotary: nn.Module, kind: str = ""):
        kinds = getattr(rotary, "rope_type", None)  # by layers' kind; tables of a kind that no layer has are not read
        self.kinds = [kind if kind in kinds else next(iter(kinds))] if isinstance(kinds, dict) else []
        self.rotary, self.tables = rotary, (torch.zeros(0, 0), torch.zeros(0, 0))

    def up_to(self, positions: int) -> tuple[Tensor, Tensor]:
        """Both tables for all positions below this one; another thread may still read the smaller ones."""
        tables = self.tables
        if positions > len(tables[0]):
            longer = torch.arange(max(positions, 2 * len(tables[0]), 512))[None]
            angles = self.rotary(torch.zeros(1), longer, *self.kinds)
            self.tables = tables = tuple(table[0].chunk(2, dim=-1)[0].contiguous() for table in angles)
        return tables


class NativeBlocks:
    """Decoder layers, their final norm and an output layer over a block after a cache's rows.

    layers: modules of Llama's or Gemma's names; without an input_layernorm, attention reads the layer's input.
    most_rows: beyond which PyTorch's operators are faster; packed layers have no such limit.

    Several threads may call one object at the same time. CannotServe where a machine cannot run a model; callers then
    use the modules themselves.
    """

    def __init__(self, layers: Sequence[nn.Module], rotary: nn.Module, norm: nn.Module | None,
                 output: nn.Module | None, embedding: nn.Module | None = None):
        _check(layers, rotary, output, embedding)
        self.modules = *layers, norm, output, embedding  # the structs hold addresses alone
        self.embedding, self.factors = embedding, []
        is_packed = all(isinstance(part, PackedLinear) for part in _linears(layers, output))
        self.most_rows = math.inf if is_packed else products.MOST_ROWS
        attention, middle_norm = layers[0].self_attn, layers[0].post_attention_layernorm
        self.like = middle_norm.weight  # [hidden], in the dtype of all activations
        self.window = next(filter(None, map(_window, layers)), None)
        self.angles, self.near_angles = Angles(rotary, FULL), Angles(rotary, SLIDING)
        self.layers = (LayerStruct * len(layers))(*(
            LayerStruct(**{f"{name}_norm": self._factor(norm) for name, norm in _norms(layer).items()},
                        **{name: self._matrix(part) for name, part in _projections(layer).items()},
                        near=_window(layer) is not None) for layer in layers))
        self.run, self.run_fill, attend = (
            getattr(build.library(), f"{name}_{NAMES[self.like.dtype]}") for name in ("forward", "fill", "onepass"))
        self.constants = ForwardStruct(
            layers=self.layers, final_norm=self._factor(norm), depth=len(layers), hidden=len(self.like),
            vocabulary=self._matrix(output), embedding=self._matrix(embedding), attend=ctypes.cast(attend, c_void_p),
            heads=attention.q_proj.out_features // attention.head_dim,
            kv_heads=attention.k_proj.out_features // attention.head_dim, dim=attention.head_dim,
            scale=getattr(attention, "scaling", attention.head_dim**-0.5),
            epsilon=getattr(middle_norm, "variance_epsilon", None) or middle_norm.eps,
            softcap=getattr(attention, "attn_logit_softcapping", None) or 0,
            tanh=ACTIVATIONS[type(layers[0].mlp.act_fn).__name__],
            embedding_scale=float(getattr(embedding, "embed_scale", torch.ones(())).to(self.like.dtype)))

    def _factor(self, norm: nn.Module | None) -> int | None:
        """The address of a norm's factors in float32."""
        if norm is None:
            return None
        self.factors.append(norm.weight.detach().float() + (type(norm).__name__ in ONE_MORE))
        return self.factors[-1].data_ptr()

    def _matrix(self, part: nn.Module | None) -> Matrix:
        """The weights of a linear layer or an embedding; the empty matrix for none."""
        if part is None:
            return Matrix()
        return matrix_of(getattr(part, "weight", None), getattr(part, "bias", None), getattr(part, "panels", None))

    def __call__(self, inputs: Tensor, offsets: Tensor, cache, mask: SharedMask, keep: int | Tensor = 0,
                 all_states: bool = False, read: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, kept, V], and with `all_states` the states [L + 1, B, m, H]: the input, each layer's, the last one
        normed.

        inputs: [B, m, H], of the first layer; with an embedding, tokens int64[B, m].
        offsets: int64[m] or [B, m], their positions after each row's prefix. cache: a TreeCache.
        keep: as transformers' logits_to_keep, the last so many nodes of each row (0: all), or these nodes.
        read: [B, m, ...], the input of the first layer's attention, if it is not the layer's.
        """
        (batch, nodes), call = inputs.shape[:2], self._block(inputs, offsets, cache, mask)
        if read is None and self.layers[0].input_norm is None:
            read = inputs
        read = None if read is None else read.contiguous()
        kept = None  # of the B * m rows those whose logits are made: all
        if not (isinstance(keep, int) and keep in (0, nodes)):
            of_row = torch.arange(nodes)[-keep:] if isinstance(keep, int) else torch.arange(nodes)[keep]
            kept = (torch.arange(batch)[:, None] * nodes + of_row).flatten()
        call.kept_rows = batch * nodes if kept is None else len(kept)
        logits = self.like.new_empty(batch, call.kept_rows // batch, call.vocabulary.out)
        states = self.like.new_empty(call.depth + 1, batch, nodes, call.hidden) if all_states else None
        call.read, call.kept, call.logits, call.states = map(start_of, (read, kept, logits, states))
        self._refuse(self.run(ctypes.byref(call)), inputs)
        return logits, states

    def fill(self, tokens: Tensor, offsets: Tensor, cache, mask: SharedMask, levels: Levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """The tokens int64[B, size] of a static tree whose root is the last of tokens int64[B, m], in one call.

        Children are their parent's most probable next tokens among the first `choices` rows of the output layer; of
        equal ones the first counts. names: the tokens of these rows, int64[V] and contiguous; None for 0, 1, ...
        Afterwards all nodes with children are pending in the cache.
        """
        (batch, nodes), call = tokens.shape, self._block(tokens, offsets, cache, mask, levels.forwarded)
        filled = tokens.new_empty(batch, levels.size)
        filled[:, 0] = tokens[:, -1]
        roots = torch.arange(1, batch + 1) * nodes - 1
        logits = self.like.new_empty(batch, levels.widest, call.vocabulary.out)
        call.kept, call.kept_rows, call.logits, call.names = start_of(roots), batch, start_of(logits), start_of(names)
        numbers = map(c_int64, (len(levels.structs), levels.size, choices))
        self._refuse(self.run_fill(ctypes.byref(call), levels.structs, *numbers, c_void_p(start_of(filled))), tokens)
        return filled

    def _block(self, inputs: Tensor, offsets: Tensor, cache, mask: SharedMask, ahead: int = 0) -> ForwardStruct:
        (batch, nodes), pending = inputs.shape[:2], cache.pending
        inputs, offsets, visible = inputs.contiguous(), offsets.contiguous(), mask.visible.contiguous()
        if offsets.shape[-1] != nodes or visible.shape[-2:] != (nodes, pending + nodes):
            raise ValueError(f"{nodes} nodes after {pending} pending ones have positions {tuple(offsets.shape)} and a "
                             f"mask {tuple(visible.shape)}; give [{nodes}] and [{nodes}, {pending + nodes}], or these "
                             "per row")
        call = self._call(cache, batch, nodes, ahead)
        call.inputs, call.tokens = (start_of(inputs), None) if self.embedding is None else (None, start_of(inputs))
        call.offsets, call.mask = start_of(offsets), start_of(visible)
        call.offset_stride, call.mask_stride = _stride(offsets, 1), _stride(visible, 2)
        call.arrays += inputs, offsets, visible
        if self.window is not None:
            first, near, prefix = mask.within(cache.rows.as_list, self.window)
            near, prefix, angles = near.visible.contiguous(), _int64s(prefix), self.near_angles.up_to(call.positions)
            call.near = ViewStruct(*map(start_of, angles), start_of(near), ctypes.addressof(prefix), first,
                                   near.shape[-1], _stride(near, 2))
            call.arrays += near, prefix, angles
        return call

    def _call(self, cache, batch: int, nodes: int, ahead: int) -> ForwardStruct:
        """The struct of one call, with cache slots for its nodes and `ahead` more of each row. It holds addresses. Two
        attributes are Python's alone: `arrays` keeps what they point to, `positions` is the length that angles need.
        """
        call = ForwardStruct.from_buffer_copy(self.constants)
        if not cache.layers:
            cache.begin(len(self.layers), self.like.new_zeros(batch, call.kv_heads, 0, call.dim))
        call.batch, call.nodes, call.pending, call.threads = batch, nodes, cache.pending, torch.get_num_threads()
        call.positions = cache.rows.longest + call.pending + nodes + ahead
        cache.room(nodes + ahead)
        call.capacity = cache.layers[0].capacity
        stored = (c_void_p * call.depth)(*(layer.address for layer in cache.layers))
        prefix, angles = _int64s(cache.rows.as_list), self.angles.up_to(call.positions)
        call.stored, call.prefix = ctypes.addressof(stored), ctypes.addressof(prefix)
        call.cosines, call.sines = map(start_of, angles)
        call.arrays = [stored, prefix, angles]
        return call

    def _refuse(self, unknown: int, tokens: Tensor) -> None:
        """IndexError for a token that the embedding does not have; unknown: its index, or -1."""
        if unknown >= 0:
            raise IndexError(f"token {tokens.flatten()[unknown]} is none of the embedding's "
                             f"{self.constants.embedding.out}; take the tokenizer that belongs to the model")


def _int64s(numbers: Sequence[int]) -> ctypes.Array:
    return (c_int64 * len(numbers))(*numbers)


def _stride(part: Tensor | None, dimensions: int) -> int:
    """The distance from one row's part, of so many dimensions and contiguous, to the next row's; 0 for a shared one."""
    return part.stride(0) if part is not None and part.dim() > dimensions and len(part) > 1 else 0


def _projections(layer: nn.Module) -> dict[str, nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    return {"query": attention.q_proj, "key": attention.k_proj, "value": attention.v_proj, "output": attention.o_proj,
            "gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}


def _linears(layers: Sequence[nn.Module], output: nn.Module | None) -> list[nn.Module]:
    projections = [part for layer in layers for part in _projections(layer).values()]
    return projections if output is None else [*projections, output]


def _norms(layer: nn.Module) -> dict[str, nn.Module | None]:
    attention, before = layer.self_attn, getattr(layer, "pre_feedforward_layernorm", None)
    norms = {"input": getattr(layer, "input_layernorm", None), "query": getattr(attention, "q_norm", None),
             "key": getattr(attention, "k_norm", None)}
    if before is None:
        return norms | {"middle": layer.post_attention_layernorm}
    return norms | {"middle": before, "attended": layer.post_attention_layernorm,
                    "widened": layer.post_feedforward_layernorm}


def _window(layer: nn.Module) -> int | None:
    return window_of(layer.self_attn, {}) if hasattr(layer.self_attn, "layer_idx") else None
