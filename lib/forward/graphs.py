"""Decoder layers of Llama's kind over key/value buffers that stay in their place, as a function of static shapes alone,
which a CUDA graph can hold (see `captured`); on a CPU it runs as it is.

The layers are transformers' own modules, or each compiled by torch. Each call sends the device one array of numbers:
lengths, tokens, positions, the tree as bits, and the slots that the previous round accepted, which the call moves
first. Smaller blocks are padded with nodes that see themselves alone, and smaller batches with rows of such nodes.
"""

from contextlib import nullcontext
from functools import cached_property, partial
from typing import Callable, NamedTuple, Sequence
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from lib.attention.backends import triton_backend
from lib.attention.backends.mask import SharedMask
from lib.attention.static import WORD, StaticTree, define_operator
from lib.forward.captured import Captured, Graphs, Inputs
from lib.forward.native import Levels, rotation_refusal
from lib.models.cache import TreeCache
from lib.verify.warping import best_token

NODES = (0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # that blocks are padded to
MOVED = 8  # accepted slots per row, on average, that a call can move; more are moved before it
SPARE = 256  # slots that a text can grow by before new buffers are full
MOST_COMPILED = 1024  # buckets of all models
LEAST_TAIL = 2  # nodes of a draft's first block: the root, and often an accepted leaf before it
LEAST_LEVEL = 8  # nodes of a later block of a growing draft, so that few buckets serve all levels


class Bucket(NamedTuple):
    """The shapes of a call: rows; nodes of each row's block; words of bits per node, for the keys after the prefix.

    states: whether hidden states are kept. tree: of a static tree that the call fills, its levels (see
    `Levels.structure`), its number of nodes, the number of tokens to choose from, and what identifies their names.
    ahead: the tree's forwarded nodes, its root excluded.
    """

    rows: int
    nodes: int
    words: int
    states: bool = False
    tree: tuple = ()
    ahead: int = 0


class StaticLayer:
    """One layer's buffers, keys and values [B, Hkv, S, d], as the cache of a call of transformers' layer.

    rows, slots: int64[B, 1] and [B, m], where the call's nodes go.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, slots: Tensor):
        self.keys, self.values, self.rows, self.slots = keys, values, rows, slots

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes states [B, Hkv, m, d] to their slots, and returns the whole buffers."""
        self.keys[self.rows, :, self.slots] = key_states.transpose(1, 2)
        self.values[self.rows, :, self.slots] = value_states.transpose(1, 2)
        return self.keys, self.values


class StaticBlocks:
    """Decoder layers of Llama's kind, their final norm and an output layer over a block of nodes after a cache's rows,
    in calls of static shapes.

    The buffers hold one cache at a time, whose layers become views of them; another cache that is forwarded takes them
    over. Their sizes are powers of two; larger ones need new graphs. Results are valid until the next call.

    most_rows: of a prompt that it reads: none. most_nodes: of a block. copied_bytes: of weights: none.
    """

    most_rows = copied_bytes = 0
    most_nodes = NODES[-1]

    def __init__(self, layers: Sequence[nn.Module], rotary: nn.Module, norm: nn.Module | None,
                 output: Callable[[Tensor], Tensor], embedding: nn.Module, compiled: bool = False):
        self.embedding, self.rotary, self.norm, self.output = embedding, rotary, norm, output
        self.layers, self._compiling = list(layers), nullcontext
        if compiled:
            define_operator()
            # One code serves all layers of a bucket; by default torch would run the ninth bucket's as they are.
            self._compiling = partial(torch._dynamo.config.patch, recompile_limit=MOST_COMPILED,
                                      accumulated_recompile_limit=MOST_COMPILED)
            self.layers = [torch.compile(layer, fullgraph=True, dynamic=False) for layer in self.layers]
        self.graphs = Graphs(next(layers[0].parameters()).device)
        self.store: Tensor | None = None  # [L, 2, B, Hkv, S, d]
        self._owner = lambda: None

    @cached_property
    def failure(self) -> str | None:
        """Why a first call, over one node, fails on this machine; None if it does not."""
        attention, one = self.layers[0].self_attn, torch.zeros(1, 1, dtype=torch.long)
        heads, cache = attention.k_proj.out_features // attention.head_dim, TreeCache()
        cache.begin(len(self.layers), self.embedding.weight.new_zeros(1, heads, 0, attention.head_dim))
        try:
            self(one, one[0], cache, SharedMask(torch.ones(1, 1, dtype=torch.bool)), 0, False)
        except Exception as error:  # CUDA's and Triton's have no class in common
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return None

    @property
    def captured(self) -> tuple[Captured, ...]:
        """What was captured, the least recently used first."""
        return self.graphs.captured

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, offsets: Tensor, cache: TreeCache, mask: SharedMask, keep: int | Tensor,
                 all_states: bool) -> tuple[Tensor, tuple[Tensor, ...] | None, Tensor]:
        """Logits [B, kept, V]; with `all_states` the states [B, m, H], embeddings, each layer's, the last normed; and
        the best token of each node, int64[B' >= B, m' >= m].

        tokens: int64[B, m]; offsets: int64[m] or [B, m], their positions after each row's prefix.
        keep: as transformers' logits_to_keep.
        """
        batch, nodes = tokens.shape
        bucket = self._bucket(batch, nodes, cache.pending, states=all_states)
        logits, best, states = self._run(bucket, None, cache, tokens, [(offsets, mask.visible)])
        logits = logits[:batch, :nodes]
        if not isinstance(keep, int) or keep:
            logits = logits[:, slice(-keep, None) if isinstance(keep, int) else keep]
        return logits, tuple(state[:batch, :nodes] for state in states) if all_states else None, best

    @torch.inference_mode()
    def fill(self, tokens: Tensor, offsets: Tensor, cache: TreeCache, mask: SharedMask, levels: Levels, choices: int,
             names: Tensor | None = None) -> Tensor:
        """A static tree's tokens int64[B, size] on the host, as `NativeBlocks.fill` gives them, in one call."""
        nodes = tokens.shape[1]
        filled = self._fill(max(nodes, LEAST_TAIL), tokens, [(offsets, mask.visible)], cache, levels, choices, names)
        filled[:, 0] = tokens[:, -1]
        return filled

    def _fill(self, nodes: int, tokens: Tensor, first: list[tuple], cache: TreeCache, levels: Levels, choices: int,
              names: Tensor | None) -> Tensor:
        """A tree's tokens but its root's, after a block of up to `nodes` tokens; first: its positions and mask."""
        bucket = self._bucket(len(tokens), nodes, 0, levels.forwarded,
                              tree=(levels.structure, levels.size, choices, id(names)))
        below = [level[2:] for level in levels.held[1:]]
        return self._run(bucket, names, cache, tokens, first + below)[: len(tokens)].cpu()

    def _bucket(self, batch: int, nodes: int, pending: int, ahead: int = 0, **kind) -> Bucket:
        """The bucket for a block of so many nodes after `pending` ones, and `ahead` forwarded after it."""
        padded = next(size for size in NODES if size >= max(nodes, LEAST_LEVEL if pending else 0))
        words = power_of_two(max(1, -(-(pending + padded + ahead) // WORD)))
        return Bucket(power_of_two(batch), padded, words, ahead=ahead, **kind)

    def _run(self, bucket: Bucket, names: Tensor | None, cache: TreeCache, tokens: Tensor, blocks: Sequence[tuple]):
        """The results of a bucket for tokens int64[B, m]; blocks: positions and mask of each of a row's blocks."""
        self._take(cache, bucket)
        with torch.cuda.device_of(self.store):
            call = self.graphs.call(bucket, partial(self._make, bucket, names))
            call.inputs.wait()
            self._write(call.inputs.host, bucket, cache, tokens, blocks)
            cache.moves = []
            cache.room(tokens.shape[1] + bucket.ahead)
            call.inputs.send()
            return call.run()

    def _take(self, cache: TreeCache, bucket: Bucket) -> None:
        """Makes the buffers hold a cache, with room for a bucket's keys after its longest row."""
        store, layers, batch = self.store, cache.layers, len(cache.rows.as_list)
        needed, owner = cache.rows.longest + WORD * bucket.words, self._owner()
        if len(cache.moves) > MOVED * bucket.rows:
            cache.settle()
        fits = store is not None and bucket.rows <= store.shape[2] and needed <= store.shape[4]
        if fits and owner is cache and layers[0].address == store.data_ptr():
            return
        cache.settle()
        if owner is not None and owner is not cache and owner.layers[0].address == store.data_ptr():
            for layer in owner.layers:
                layer.hold([layer.buffers[0].clone()])
        if not fits:
            self.graphs.forget()
            *_, kv_heads, _, width = layers[0].buffers[0].shape
            rows, slots = (0, 0) if store is None else (store.shape[2], store.shape[4])
            slots = max(slots, power_of_two(needed + SPARE))
            shape = len(layers), 2, max(rows, bucket.rows), kv_heads, slots, width
            with torch.inference_mode(False):  # later calls may write to them in any mode
                self.store = torch.zeros(shape, dtype=layers[0].keys.dtype, device=self.graphs.device)
        used = cache.rows.longest + cache.pending
        for layer, own in zip(layers, self.store):
            own[:, :batch, :, :used] = layer.buffers[0][:, :, :, :used]
            layer.hold([own[:, :batch]])
        self._owner, cache.waits = ref(cache), True

    def _make(self, bucket: Bucket, names: Tensor | None) -> tuple[Inputs, Callable[[], object]]:
        """A bucket's inputs, by which nodes go to free slots and see stored keys, and its function."""
        rows, nodes, words, total = bucket.rows, bucket.nodes, bucket.words, bucket.nodes + bucket.ahead
        device, slots = self.graphs.device, self.store.shape[4]
        inputs = Inputs({"lengths": (rows,), "start": (rows,), "nodes": (1,), "moves": (3, MOVED * rows),
                         "tokens": (rows, nodes), "offsets": (rows, total), "words": (rows, total, words)}, device)
        inputs.host["start"][:], inputs.host["nodes"][:] = slots - total, min(nodes, 1)
        inputs.host["moves"][1:], inputs.host["words"][:] = slots - 1, -1
        levels, parent_of = [], {0: 0}
        for level, below in bucket.tree[0] if bucket.tree else ():
            above, most = [parent_of[slot] for slot in level], 1 + max(rank for _, rank, _ in below)
            parent_of = {child: parent for parent, _, child in below}
            entries = [parent * most + rank for parent, rank, _ in below]
            levels.append((*(torch.tensor(x, device=device) for x in (level, above, entries, list(parent_of))), most))
        return inputs, partial(self._compute, bucket, inputs, levels, names)

    def _write(self, host: dict[str, np.ndarray], bucket: Bucket, cache: TreeCache, tokens: Tensor,
               blocks: Sequence[tuple]) -> None:
        """Writes a call's inputs; what pads it sees itself alone."""
        (batch, nodes), pending = tokens.shape, cache.pending
        host["lengths"][:batch], host["lengths"][batch:] = cache.rows.as_list, 0
        host["start"][:], host["nodes"][:] = host["lengths"] + pending, nodes
        host["moves"][0], host["moves"][1:] = 0, host["start"][0]  # a free slot, onto itself
        if cache.moves:
            host["moves"][:, : len(cache.moves)] = np.array(cache.moves).T
        host["tokens"][:] = host["offsets"][:] = 0
        host["tokens"][:batch, :nodes] = tokens.numpy(force=True)
        rows, total, words = host["words"].shape
        sees = np.zeros((rows, total, WORD * words), dtype=bool)
        ahead = total - bucket.nodes
        itself = np.concatenate([pending + np.arange(bucket.nodes), nodes + np.arange(ahead)])
        sees[:, np.arange(total), itself] = True
        first = 0
        for offsets, visible in blocks:
            size, keys = visible.shape[-2:]
            host["offsets"][:batch, first : first + size] = offsets.numpy(force=True)
            sees[:batch, first : first + size, :keys] = visible.numpy(force=True)
            first = max(first + size, bucket.nodes)
        host["words"][:] = np.packbits(sees, axis=-1, bitorder="little").view(np.int32)

    def _compute(self, bucket: Bucket, inputs: Inputs, levels: Sequence[tuple], names: Tensor | None):
        """Moves accepted slots, then forwards: of a block logits, best tokens and states, or a tree's tokens."""
        given, wide = inputs.parts(inputs.whole), inputs.parts(inputs.whole.long())
        row, origin, goal = wide["moves"]
        self.store[:, :, row, :, goal] = self.store[:, :, row, :, origin]
        state, states = self._first(given, wide, root_alone=bool(levels))
        if not levels:
            logits = self.output(state)
            return logits, best_token(logits), states if bucket.states else None
        filled, first = wide["tokens"].new_zeros(bucket.rows, bucket.tree[1]), bucket.nodes
        for depth, (nodes, above, entries, children, most) in enumerate(levels):
            if depth:
                start = wide["start"][:, None] + wide["nodes"] + (first - bucket.nodes)
                state, _ = self._block(given, wide, filled[:, nodes], first, start, state[:, above])
                first += len(nodes)
            best = _best_tokens(self.output(state)[..., : bucket.tree[2]], most)
            filled[:, children] = (best if names is None else names[best]).flatten(1)[:, entries]
        return filled

    def _first(self, given: dict[str, Tensor], wide: dict[str, Tensor], root_alone: bool):
        """What `_block` gives of the first block, of which a tree needs the last node's state alone, [B, 1, H]."""
        state, states = self._block(given, wide, wide["tokens"], 0, wide["start"][:, None])
        return state.index_select(1, wide["nodes"] - 1) if root_alone else state, states

    def _block(self, given: dict[str, Tensor], wide: dict[str, Tensor], tokens: Tensor, first: int, start: Tensor,
               above: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """The last normed state and all states of tokens int64[B, k], whose positions and bits begin at node `first`,
        and whose slots at start int64[B, 1]. above: [B, k, H], the last state of each node's parent, in a tree.
        """
        rows, nodes = tokens.shape
        here, at_row = slice(first, first + nodes), torch.arange(rows, device=tokens.device)[:, None]
        slots = start + torch.arange(nodes, device=tokens.device)
        stored = [StaticLayer(keys, values, at_row, slots) for keys, values in self.store[:, :, :rows]]
        positions = wide["lengths"][:, None] + wide["offsets"][:, here]
        states = self._states(tokens, positions, stored, StaticTree(given["words"][:, here], given["lengths"]), above)
        return states[-1], states

    def _states(self, tokens: Tensor, positions: Tensor, stored: Sequence[StaticLayer], tree: StaticTree,
                above: Tensor | None) -> list[Tensor]:
        """The states of tokens at positions, both int64[B, k]: embeddings, each layer's, the last normed."""
        states = [self.embedding(tokens)]
        rotation = self.rotary(states[0], position_ids=positions)
        with self._compiling():
            for layer, cache in zip(self.layers, stored):
                states.append(layer(states[-1], position_embeddings=rotation, tree_mask=tree, past_key_values=cache))
        states[-1] = self.norm(states[-1])
        return states


def power_of_two(count: int) -> int:
    """The least one that is not below a count."""
    return 1 << (count - 1).bit_length()


def _best_tokens(scores: Tensor, count: int) -> Tensor:
    """The best tokens of scores [..., V], int64[..., count]; of equals the one with the lower index first."""
    best = [best_token(scores)]
    while len(best) < count:  # topk promises no order among equals
        scores = scores.scatter(-1, best[-1][..., None], float("-inf"))
        best.append(best_token(scores))
    return torch.stack(best, dim=-1)


def refusal(model, device: str = "") -> str | None:
    """Why a model of Llama's kind cannot run so; None if it can. device: the kind of device on which it will be, for a
    model without storage.
    """
    places = {weight.device for weight in model.parameters()}
    if len(places) > 1:
        return f"its weights are on {', '.join(sorted(map(str, places)))}"
    kind, decoder = device or next(iter(places)).type, model.model
    if (reason := rotation_refusal(decoder.rotary_emb)) or kind == "cpu":
        return reason
    if kind != "cuda":
        return f"graphs are for CUDA, its weights are on {kind}"
    if getattr(model, "quantised", "none") != "none":
        return f"its weights are {model.quantised}, which each call would unpack"
    return triton_backend.kernel_refusal(kind, model.dtype, decoder.layers[0].self_attn.head_dim)
