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
        ("input", c_void_p),
        *((name, Matrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        ("stored", c_void_p),
        ("capacity", c_int64),
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
        *((name, c_void_p) for name in ("kept", "names", "mask", "states", "last", "logits", "attend")),
        ("near", ViewStruct),
        ("vocabulary", Matrix),
        ("embedding", Matrix),
        *((name, c_int64) for name in ("depth", "batch", "nodes", "pending", "hidden", "heads", "kv_heads", "dim")),
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
        self.rotary, self.cosines = rotary, torch.zeros(0, 0)

    def up_to(self, positions: int) -> tuple[Tensor, Tensor]:
        """Both tables, for at least all positions below this one."""
        if positions > len(self.cosines):
            places = torch.arange(max(positions, 2 * len(self.cosines), 512))[None]
            whole = [table[0].chunk(2, dim=-1)[0].contiguous() 
                     for table in self.rotary(torch.zeros(1), places, *self.kinds)]
            self.cosines, self.sines = whole
        return self.cosines, self.sines


class NativeBlocks:
    """Decoder layers of Llama's kind, their final norm and an output layer over a block after a cache's rows.

    layers: modules with self_attn (q_proj, k_proj, v_proj, o_proj; q_norm and k_norm where it has them), mlp
        (gate_proj, up_proj, down_proj) and post_attention_layernorm, which with a pre_feedforward_layernorm is that of
        attention's output; without an input_layernorm, attention reads the layer's input.
    norm, output, embedding: None where there is none.

    Weights that are numbers of 16 bits are held a second time, in panels, unless that fills the memory. Beyond
    `most_rows` rows PyTorch's operators are faster: without panels. An object serves one call at a time.
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
        self.forward = ForwardStruct(
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

    def __call__(self, given: Tensor, offsets: Tensor, cache, mask: SharedMask, keep: int | Tensor = 0,
                 all_states: bool = False, read: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, kept, V], and with `all_states` the states [L + 1, B, m, H]: the input, each layer's, the last one
        normed.

        given: [B, m, H], the input of the first layer; with an embedding, tokens int64[B, m].
        offsets: int64[m] or [B, m], their positions after each row's prefix.
        cache: a TreeCache; layers are made in an empty one.
        keep: as transformers' logits_to_keep, the last so many nodes of each row (0: all), or these nodes.
        read: [B, m, ...], the input of the first layer's attention, if it is not the layer's.
        IndexError for a token that the embedding does not have.
        """
        return self._call(self.run, given, offsets, cache, mask, keep, all_states, read)

    def fill(self, tokens: Tensor, offsets: Tensor, cache, mask: SharedMask, levels: Levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """The tokens int64[B, size] of a static tree whose root is the last of tokens int64[B, m], in one call.

        Children are their parent's most probable next tokens among the first `choices` rows of the output layer; of
        equal ones the first counts. names: the tokens of these rows, int64[V] and contiguous; None for 0, 1, ...
        Afterwards the cache holds keys and values of all nodes with children, pending. For blocks with an embedding;
        errors as above.
        """
        filled = tokens.new_empty(tokens.shape[0], levels.size)
        filled[:, 0] = tokens[:, -1]
        self.forward.names = start_of(names)

        def run(forward):
            return self.run_fill(forward, levels.structs, *map(c_int64, (len(levels.structs), levels.size, choices)),
                                 c_void_p(start_of(filled)))

        self._call(run, tokens, offsets, cache, mask, keep=1, ahead=levels.forwarded, widest=levels.widest)
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

    def _call(self, run, given: Tensor, offsets: Tensor, cache, mask: SharedMask, keep: int | Tensor,
              all_states: bool = False, read: Tensor | None = None, ahead: int = 0,
              widest: int = 0) -> tuple[Tensor, Tensor | None]:
        """Calls `run`, with cache slots for `ahead` more nodes and room for logits of `widest` nodes per row."""
        (batch, nodes), pending, f = given.shape[:2], cache.pending, self.forward
        given, offsets, visible = given.contiguous(), offsets.contiguous(), mask.visible.contiguous()
        if offsets.shape[-1] != nodes or visible.shape[-2:] != (nodes, pending + nodes):
            raise ValueError(f"{nodes} nodes after {pending} pending ones have positions {tuple(offsets.shape)} and a "
                             f"mask {tuple(visible.shape)}; give [{nodes}] and [{nodes}, {pending + nodes}], or these "
                             "per row")
        self._take_room(cache, batch, nodes, ahead)
        wanted = None  # of the B * m rows those whose logits are wanted: all
        if not (isinstance(keep, int) and keep in (0, nodes)):
            of_row = torch.arange(nodes)[-keep:] if isinstance(keep, int) else torch.arange(nodes)[keep]
            wanted = (torch.arange(batch)[:, None] * nodes + of_row).flatten()
        rows = batch * nodes if wanted is None else len(wanted)
        logits = self.like.new_empty(batch, max(widest, rows // batch), f.vocabulary.out)
        states = self.like.new_empty(f.depth + 1, batch, nodes, f.hidden) if all_states else None
        f.given, f.tokens = (start_of(given), None) if self.embedding is None else (None, start_of(given))
        read = given if read is None and self.layers[0].input_norm is None else read
        read = None if read is None else read.contiguous()
        self.layers[0].input = start_of(read)
        f.offsets, f.mask, f.kept, f.kept_rows = start_of(offsets), start_of(visible), start_of(wanted), rows
        f.offset_stride, f.mask_stride = _strides(nodes, offsets, visible)
        first, near, prefix = mask.within(cache.rows.as_list, self.window)
        near, prefix = near.visible.contiguous(), (c_int64 * batch)(*prefix)
        f.near = ViewStruct(*map(start_of, self.near_angles.up_to(len(self.angles.cosines))), start_of(near),
                            ctypes.addressof(prefix), first, near.shape[-1], _strides(nodes, None, near)[1])
        f.states, f.logits, f.threads = start_of(states), start_of(logits), torch.get_num_threads()
        if (unknown := run(ctypes.byref(f))) >= 0:
            raise IndexError(f"token {given.flatten()[unknown]} is none of the embedding's {f.embedding.out}; "
                             "take the tokenizer that belongs to the model")
        return logits, states

    def _take_room(self, cache, batch: int, nodes: int, ahead: int) -> None:
        """Reserves cache slots for keys and values, and the angles of their positions; `ahead` more of both."""
        if not cache.layers:
            cache.begin(len(self.layers), self.like.new_zeros(batch, self.forward.kv_heads, 0, self.forward.dim))
        f, f.pending = self.forward, cache.pending
        cache.room(nodes + ahead)
        for layer, stored in zip(self.layers, cache.layers):
            layer.stored, layer.capacity = stored.address, stored.capacity
        f.batch, f.nodes, self.prefix = batch, nodes, (c_int64 * batch)(*cache.rows.as_list)
        f.prefix = ctypes.addressof(self.prefix)
        f.cosines, f.sines = map(start_of, self.angles.up_to(cache.rows.longest + f.pending + nodes + ahead))


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
