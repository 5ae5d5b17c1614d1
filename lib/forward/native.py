"""Decoder layers over the few nodes of a draft tree in one call of C++ (`forward.h`), with the model's own weights.
Layers of Llama's kind, and of Gemma's 2 and 3: windows, capped scores, GELU, and norms of what a layer adds.

`NativeBlocks.fill` drafts a whole static tree in one call (`fill.h`). `refusal` says why a machine or a model cannot
run them; callers then use the modules themselves.
"""

import ctypes
import math
from ctypes import c_float, c_int64, c_void_p
from typing import Sequence

import torch
from torch import Tensor, nn

from lib.attention.masks import SharedMask
from lib.attention.registration import FULL, SLIDING, window_of
from lib.forward.packed import panels_of
from lib.forward.quantize import PackedEmbedding, PackedLinear
from lib.kernels import build, products
from lib.kernels.panels import of_16_bits
from lib.kernels.products import NAMES, Matrix, fills_the_memory, matrix_of, start_of

ROTATIONS = ("default", "linear", "llama3", "yarn")  # their angles do not depend on the text's length
ACTIVATIONS = {"SiLU": False, "SiLUActivation": False, "GELUTanh": True}  # torch's and transformers'; by tanh or not
ONE_MORE = {"Gemma2RMSNorm", "Gemma3RMSNorm"}  # whose factor is one more than the weight


class LayerStruct(ctypes.Structure):
    """The struct `Layer` of `forward.h`."""

    _fields_ = [
        *((f"{name}_norm", c_void_p) for name in ("input", "query", "key", "middle", "attended", "widened")),
        *((name, Matrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        ("near", c_int64),
    ]


class ViewStruct(ctypes.Structure):
    """The struct `View` of `forward.h`."""

    _fields_ = [*((name, c_void_p) for name in ("cosines", "sines", "mask", "prefix")),
                *((name, c_int64) for name in ("first", "tree_keys", "mask_stride"))]


class ForwardStruct(ctypes.Structure):
    """The struct `Forward` of `forward.h`."""

    _fields_ = [
        ("layers", ctypes.POINTER(LayerStruct)),
        *((name, c_void_p) for name in ("given", "final_norm", "tokens", "cosines", "sines", "offsets", "prefix")),
        *((name, c_void_p) for name in ("kept", "names", "mask", "input", "stored", "states", "last", "logits")),
        ("attend", c_void_p),
        ("near", ViewStruct),
        ("vocabulary", Matrix),
        ("embedding", Matrix),
        *((name, c_int64) for name in ("depth", "batch", "nodes", "pending", "capacity", "hidden")),
        *((name, c_int64) for name in ("heads", "kv_heads", "dim")),
        *((name, c_int64) for name in ("kept_rows", "mask_stride", "offset_stride", "threads", "tanh")),
        *((name, c_float) for name in ("scale", "epsilon", "softcap", "embedding_scale")),
    ]


class LevelStruct(ctypes.Structure):
    """The struct `Level` of `fill.h`."""

    _fields_ = [
        *((name, c_void_p) for name in ("slots", "offsets", "mask", "below")),
        *((name, c_int64) for name in ("nodes", "children", "offset_stride", "mask_stride")),
    ]


class Levels:
    """The levels of a tree of `size` nodes as `NativeBlocks.fill` takes them, the root's first.

    levels: one tuple per level (slots, below, offsets, mask).
        slots: int64[k] of the level's nodes.
        below: int64[c, 3], for each of their children the parent's place in the level, its rank and its slot.
        offsets, mask: as a block of these nodes takes them; None for the first level.
    """

    def __init__(self, size: int, levels: Sequence[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]):
        self.size, self.forwarded = size, sum(len(slots) for slots, *_ in levels[1:])
        self.widest = max(len(slots) for slots, *_ in levels)
        # The structs hold addresses alone.
        self.tensors = [tuple(None if part is None else part.contiguous() for part in level) for level in levels]
        self.structs = (LevelStruct * len(levels))(*(
            LevelStruct(*map(start_of, (slots, offsets, mask, below)), len(slots), len(below),
                        *_strides(len(slots), offsets, mask)) for slots, below, offsets, mask in self.tensors))


def rotation_refusal(rotary: nn.Module) -> str | None:
    """Why the angles of a rotary embedding cannot be tabulated by position; None if they can."""
    kinds = getattr(rotary, "rope_type", "default")
    odd = [kind for kind in (kinds.values() if isinstance(kinds, dict) else [kinds]) if kind not in ROTATIONS]
    return f"its rotation {odd[0]!r} depends on the text's length" if odd else None


def refusal(layers: Sequence[nn.Module], rotary: nn.Module, output: nn.Module | None,
            embedding: nn.Module | None = None, device: str = "") -> str | None:
    """Why decoder layers, with their output layer and embedding if given, do not run here; None if they do.

    device: the kind of device on which they will be, by default where they are. Compiles the C++ at its first use.
    """
    if (reason := rotation_refusal(rotary)) is not None:
        return reason
    projections = [part for layer in layers for part in _projections(layer).values()]
    projections += [] if output is None else [output]
    odd = {type(part).__name__ for part in projections if type(part) not in (nn.Linear, PackedLinear)}
    if odd:
        return f"its projections are {', '.join(sorted(odd))}"
    used = {type(layer.mlp.act_fn).__name__ for layer in layers}
    if other := used - {*ACTIVATIONS}:
        return f"its activation is {', '.join(sorted(other))}, neither silu nor gelu by tanh"
    if len({_window(layer) for layer in layers} - {None}) > 1:
        return "its layers see windows of several sizes"
    size = layers[0].self_attn.head_dim
    if size % 8:
        return f"its heads have {size} numbers, no multiple of 8"
    norms = [norm for layer in layers for norm in _norms(layer).values() if norm is not None]
    tables = [] if embedding is None else [embedding]
    packed = [part for part in projections if isinstance(part, PackedLinear)]
    if layers[0].post_attention_layernorm.weight.dtype != torch.float32 and not all(
            part.panels.takes_bfloat16 for part in packed):
        return "blocks of few bits are multiplied with float32 numbers alone"
    forms = [[part.panels.form if isinstance(part, PackedLinear) else None for part in (mlp.gate_proj, mlp.up_proj)]
             for mlp in (layer.mlp for layer in layers)]
    if any(gate != up for gate, up in forms):
        return "gate and up have weights in different formats"
    whole = (part for part in (*projections, *norms, *tables) if not isinstance(part, (PackedLinear, PackedEmbedding)))
    return products.weights_refusal([part.weight for part in whole], device)


class Angles:
    """Cosines and sines float32[P, d / 2] of a rotary embedding by position; P doubles as texts grow.

    kind: of layers, for an embedding with angles of their own for each.
    """

    def __init__(self, rotary: nn.Module, kind: str = ""):
        self.kinds = [kind] if isinstance(getattr(rotary, "rope_type", None), dict) else []
        self.rotary, self.tables = rotary, (torch.zeros(0, 0), torch.zeros(0, 0))

    def up_to(self, positions: int) -> tuple[Tensor, Tensor]:
        """Both tables, for at least all positions below this one. Larger ones replace them and leave these as they are,
        which another thread may read.
        """
        tables = self.tables
        if positions > len(tables[0]):
            longer = torch.arange(max(positions, 2 * len(tables[0]), 512))[None]
            angles = self.rotary(torch.zeros(1), longer, *self.kinds)
            self.tables = tables = tuple(table[0].chunk(2, dim=-1)[0].contiguous() for table in angles)
        return tables


class NativeBlocks:
    """Decoder layers of Llama's kind, their final norm and an output layer over a block after a cache's rows.

    layers: modules with self_attn (q_proj, k_proj, v_proj, o_proj; q_norm and k_norm where it has them), mlp
        (gate_proj, up_proj, down_proj) and post_attention_layernorm, which with a pre_feedforward_layernorm is that of
        attention's output; without an input_layernorm, attention reads the layer's input.
    norm, output, embedding: None where there is none.

    Weights that are numbers of 16 bits are held a second time, in panels, unless that fills the memory. Beyond
    `most_rows` rows PyTorch's operators are faster: without panels. Several threads may call one object at a time.
    """

    most_nodes = math.inf  # of a block

    def __init__(self, layers: Sequence[nn.Module], rotary: nn.Module, norm: nn.Module | None,
                 output: nn.Linear | None, embedding: nn.Embedding | None = None):
        self.modules = *layers, norm, output, embedding  # the structs hold addresses alone
        linears = [part for layer in layers for part in _projections(layer).values()] + [output] * (output is not None)
        plain = [part for part in linears if isinstance(part, nn.Linear)]
        packed = {part: panels for part in plain if (panels := panels_of(part)) is not None}
        rest = [part for part in plain if part not in packed]
        copied = not fills_the_memory((part.weight for part in rest), each=2)
        self.copies = {part: of_16_bits(part.weight) for part in rest if copied}
        of_part = packed | self.copies
        for gate, up in ((layer.mlp.gate_proj, layer.mlp.up_proj) for layer in layers):  # one product computes both
            both = [of_part.get(part) for part in (gate, up)]
            if None not in both and both[0].form != both[1].form:
                of_part[gate] = of_part[up] = None
        self.copies = {part: of_part[part] for part in self.copies}
        self.panels = of_part | {part: part.panels for part in linears if isinstance(part, PackedLinear)}
        in_panels = all(self.panels.get(part) is not None for part in linears)
        self.most_rows = math.inf if in_panels else products.MOST_ROWS
        self.factors: list[Tensor] = []
        self.layers = (LayerStruct * len(layers))(*(
            LayerStruct(**{f"{name}_norm": self._factor(norm) for name, norm in _norms(layer).items()},
                  **{name: self._matrix(part) for name, part in _projections(layer).items()},
                  near=_window(layer) is not None) for layer in layers))
        attention = layers[0].self_attn
        self.window = next(filter(None, map(_window, layers)), None)
        self.angles, self.near_angles = Angles(rotary, FULL), Angles(rotary, SLIDING)
        self.like = layers[0].post_attention_layernorm.weight  # [hidden], in the dtype of all activations
        self.embedding, table = embedding, Matrix()
        self.table = embedding.panels if isinstance(embedding, PackedEmbedding) else None
        if embedding is not None:
            table = matrix_of(embedding.weight if self.table is None else None, panels=self.table)
        kind = NAMES[self.like.dtype]
        self.run, self.run_fill, attend = (
            getattr(build.library(), f"{name}_{kind}") for name in ("forward", "fill", "onepass"))
        self.constants = ForwardStruct(
            layers=self.layers, final_norm=self._factor(norm), depth=len(layers), hidden=len(self.like),
            vocabulary=Matrix() if output is None else self._matrix(output), embedding=table,
            attend=ctypes.cast(attend, c_void_p),
            heads=attention.q_proj.out_features // attention.head_dim,
            kv_heads=attention.k_proj.out_features // attention.head_dim, dim=attention.head_dim,
            scale=getattr(attention, "scaling", attention.head_dim**-0.5),
            epsilon=next(getattr(layers[0].post_attention_layernorm, name) for name in ("variance_epsilon", "eps")
                         if hasattr(layers[0].post_attention_layernorm, name)),
            softcap=getattr(attention, "attn_logit_softcapping", None) or 0,
            tanh=ACTIVATIONS[type(layers[0].mlp.act_fn).__name__],
            embedding_scale=float(getattr(embedding, "embed_scale", torch.ones(())).to(self.like.dtype)))

    def __call__(self, inputs: Tensor, offsets: Tensor, cache, mask: SharedMask, keep: int | Tensor = 0,
                 all_states: bool = False, read: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, kept, V], and with `all_states` the states [L + 1, B, m, H]: the input, each layer's, the last one
        normed.

        inputs: [B, m, H], of the first layer; with an embedding, tokens int64[B, m].
        offsets: int64[m] or [B, m], their positions after each row's prefix.
        cache: a TreeCache; layers are made in an empty one.
        keep: as transformers' logits_to_keep, the last so many nodes of each row (0: all), or these nodes.
        read: [B, m, ...], the input of the first layer's attention, if it is not the layer's.
        IndexError for a token that the embedding does not have.
        """
        (batch, nodes), f = inputs.shape[:2], self._block(inputs, offsets, cache, mask)
        if read is None and self.layers[0].input_norm is None:
            read = inputs
        read = None if read is None else read.contiguous()
        kept = None  # of the B * m rows those whose logits are made: all
        if not (isinstance(keep, int) and keep in (0, nodes)):
            of_row = torch.arange(nodes)[-keep:] if isinstance(keep, int) else torch.arange(nodes)[keep]
            kept = (torch.arange(batch)[:, None] * nodes + of_row).flatten()
        f.kept_rows = batch * nodes if kept is None else len(kept)
        logits = self.like.new_empty(batch, f.kept_rows // batch, f.vocabulary.out)
        states = self.like.new_empty(f.depth + 1, batch, nodes, f.hidden) if all_states else None
        f.input, f.kept, f.logits, f.states = map(start_of, (read, kept, logits, states))
        self._refuse(self.run(ctypes.byref(f)), inputs)
        return logits, states

    def fill(self, tokens: Tensor, offsets: Tensor, cache, mask: SharedMask, levels: Levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """The tokens int64[B, size] of a static tree whose root is the last of tokens int64[B, m], in one call.

        Children are their parent's most probable next tokens among the first `choices` rows of the output layer; of
        equal ones the first counts. names: the tokens of these rows, int64[V] and contiguous; None for 0, 1, ...
        Afterwards the cache holds keys and values of all nodes with children, pending. For blocks with an embedding;
        errors as above.
        """
        (batch, nodes), f = tokens.shape, self._block(tokens, offsets, cache, mask, levels.forwarded)
        filled = tokens.new_empty(batch, levels.size)
        filled[:, 0] = tokens[:, -1]
        roots = torch.arange(1, batch + 1) * nodes - 1
        logits = self.like.new_empty(batch, levels.widest, f.vocabulary.out)
        f.kept, f.kept_rows, f.logits, f.names = start_of(roots), batch, start_of(logits), start_of(names)
        self._refuse(self.run_fill(ctypes.byref(f), levels.structs, *map(c_int64, (
            len(levels.structs), levels.size, choices)), c_void_p(start_of(filled))), tokens)
        return filled

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that are held a second time."""
        return sum(copy.nbytes for copy in self.copies.values() if copy is not None)

    def _factor(self, norm: nn.Module | None) -> int | None:
        """The address of a norm's factors as float32 numbers, which stay while this object does."""
        if norm is None:
            return None
        self.factors.append(norm.weight.detach().float() + (type(norm).__name__ in ONE_MORE))
        return self.factors[-1].data_ptr()

    def _matrix(self, part: nn.Module) -> Matrix:
        return matrix_of(part.weight if isinstance(part, nn.Linear) else None, part.bias, self.panels.get(part))

    def _block(self, inputs: Tensor, offsets: Tensor, cache, mask: SharedMask, ahead: int = 0) -> ForwardStruct:
        """The struct of a call over a block of nodes, as `__call__` takes them; ahead: as for `_call`."""
        (batch, nodes), pending = inputs.shape[:2], cache.pending
        inputs, offsets, visible = inputs.contiguous(), offsets.contiguous(), mask.visible.contiguous()
        if offsets.shape[-1] != nodes or visible.shape[-2:] != (nodes, pending + nodes):
            raise ValueError(f"{nodes} nodes after {pending} pending ones have positions {tuple(offsets.shape)} and a "
                             f"mask {tuple(visible.shape)}; give [{nodes}] and [{nodes}, {pending + nodes}], or these "
                             "per row")
        f = self._call(cache, batch, nodes, ahead)
        first, near, prefix = mask.within(cache.rows.as_list, self.window)
        near, prefix, angles = near.visible.contiguous(), (c_int64 * batch)(*prefix), self.near_angles.up_to(f.positions)
        f.given, f.tokens = (start_of(inputs), None) if self.embedding is None else (None, start_of(inputs))
        f.offsets, f.mask = start_of(offsets), start_of(visible)
        f.offset_stride, f.mask_stride = _strides(nodes, offsets, visible)
        f.near = ViewStruct(*map(start_of, angles), start_of(near), ctypes.addressof(prefix), first, near.shape[-1],
                            _strides(nodes, None, near)[1])
        f.arrays += inputs, offsets, visible, near, prefix, angles
        return f

    def _call(self, cache, batch: int, nodes: int, ahead: int) -> ForwardStruct:
        """The struct of one call, with cache slots for its nodes and `ahead` more of each row, and the angles of their
        `positions`. It holds addresses; `arrays` keeps what they point to.
        """
        f = ForwardStruct.from_buffer_copy(self.constants)
        if not cache.layers:
            cache.begin(len(self.layers), self.like.new_zeros(batch, f.kv_heads, 0, f.dim))
        f.batch, f.nodes, f.pending, f.threads = batch, nodes, cache.pending, torch.get_num_threads()
        f.positions = cache.rows.longest + f.pending + nodes + ahead
        cache.room(nodes + ahead)
        f.capacity = cache.layers[0].capacity
        stored, prefix = (c_void_p * f.depth)(*(layer.address for layer in cache.layers)), (c_int64 * batch)(
            *cache.rows.as_list)
        angles = self.angles.up_to(f.positions)
        f.stored, f.prefix, f.arrays = ctypes.addressof(stored), ctypes.addressof(prefix), [stored, prefix, angles]
        f.cosines, f.sines = map(start_of, angles)
        return f

    def _refuse(self, unknown: int, tokens: Tensor) -> None:
        """IndexError for a token that the embedding does not have; unknown: its place among the tokens, or -1."""
        if unknown >= 0:
            raise IndexError(f"token {tokens.flatten()[unknown]} is none of the embedding's "
                             f"{self.constants.embedding.out}; take the tokenizer that belongs to the model")


def _strides(nodes: int, offsets: Tensor | None, mask: Tensor | None) -> tuple[int, int]:
    """The distance from one row's offsets and mask to the next row's; 0 where all rows share them."""
    of_offsets = nodes if offsets is not None and offsets.dim() == 2 and len(offsets) > 1 else 0
    of_mask = nodes * mask.shape[-1] if mask is not None and mask.dim() == 3 and len(mask) > 1 else 0
    return of_offsets, of_mask


def _projections(layer: nn.Module) -> dict[str, nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    return {"query": attention.q_proj, "key": attention.k_proj, "value": attention.v_proj, "output": attention.o_proj,
            "gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}


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
