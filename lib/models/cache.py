"""A key/value cache for draft trees: it appends in place, keeps only the accepted path, and has one length per row.

A forward pass appends a block of nodes after each row's committed length; further ones before `commit` append after
that block (a drafter grows its tree level by level). `commit` moves the accepted nodes to the block's front; later
blocks overwrite the rest. Rows are right-padded: slots 0 .. lengths[b] - 1 of row b are committed.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

from lib.models.recurrent import States

SMALLEST = 128  # slots of the first allocation; a full buffer then doubles


class Rows:
    """The committed lengths, which the layers share: as a list, and as a tensor int64[B]."""

    def __init__(self):
        self.set([])

    def set(self, lengths: list[int], device: torch.device | None = None) -> None:
        """Commits these lengths, of rows on this device."""
        self.as_list, self.device = lengths, device
        self.lengths = torch.tensor(lengths, dtype=torch.long, device=device)

    @property
    def longest(self) -> int:
        """Committed tokens of the longest row; 0 without rows."""
        return max(self.as_list, default=0)


class TreeLayer(CacheLayerMixin):
    """One layer's buffers: keys, values [B, Hkv, capacity, d], of which each row uses lengths[b] + pending slots. Those
    of equal width are the halves of one buffer [2, B, Hkv, capacity, d], so that a commit moves both in one gather.
    """

    def __init__(self, rows: Rows):
        super().__init__()
        self.rows = rows
        self.pending = 0  # nodes appended since the last commit

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Makes empty buffers for states like [B, Hkv, m, d]; transformers calls it in the first forward pass."""
        # Zeros: a masked slot must be finite, since 0 times NaN is NaN.
        empty = [s.new_zeros(1, *s.shape[:2], 0, s.shape[-1]) for s in (key_states, value_states)]
        self.take([torch.cat(empty)] if empty[0].shape == empty[1].shape else empty)
        if not self.rows.as_list:
            self.rows.set([0] * key_states.shape[0], key_states.device)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Appends [B, Hkv, m, d] to each row, and returns views of all slots up to the longest row's end."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, nodes = self.pending, key_states.shape[2]
        self.append(nodes)
        end = self.get_seq_length()
        if len(set(self.rows.as_list)) == 1:  # one slice serves all rows
            self.keys[:, :, end - nodes : end], self.values[:, :, end - nodes : end] = key_states, value_states
        else:
            rows = torch.arange(len(key_states), device=key_states.device)[:, None]
            slots = self.rows.lengths[:, None] + torch.arange(start, start + nodes, device=key_states.device)
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def append(self, nodes: int) -> None:
        """Adds so many pending nodes; buffers grow by doubling, so that appending has a constant cost per token."""
        self.pending += nodes
        slots = self.get_seq_length()
        if slots > self.capacity:
            grown = [old.new_zeros(*old.shape[:3], max(slots, 2 * self.capacity, SMALLEST), old.shape[-1])
                     for old in self.buffers]
            for old, new in zip(self.buffers, grown):
                new[:, :, :, : self.capacity] = old
            self.take(grown)

    def take(self, buffers: list[Tensor]) -> None:
        """Takes one buffer [2, B, Hkv, capacity, d] for both, or one [1, ..] for each."""
        self.buffers, self.capacity = buffers, buffers[0].shape[3]
        self.keys, self.values = buffers[0][0], buffers[-1][-1]
        self.address = buffers[0].data_ptr()  # kept, because each call of PyTorch takes time in every round

    def join(self, others: Sequence["TreeLayer"]) -> None:
        """Appends the rows of other layers."""
        layers = self, *others
        capacity = max(layer.capacity for layer in layers)
        padded = ([pad(buffer, (0, 0, 0, capacity - layer.capacity)) for buffer in layer.buffers] for layer in layers)
        self.take([torch.cat(parts, dim=1) for parts in zip(*padded)])

    def get_seq_length(self) -> int:
        """Tokens of the longest row, pending nodes included; transformers appends after them."""
        return self.rows.longest + self.pending

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that a mask for so many more tokens covers, and the slot of the first."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """-1: the buffers grow without a limit."""
        return -1


class TreeCache(Cache):
    """The cache of a batch of trees: one `TreeLayer` per layer of the model, made at the first `update`, and the states
    of those that are recurrent, with which it takes chains alone.
    """

    def __init__(self):
        self.rows = Rows()
        self.states: dict[int, States] = {}  # by layer
        super().__init__(layer_class_to_replicate=partial(TreeLayer, self.rows))

    @property
    def lengths(self) -> Tensor:
        """Committed tokens per row, int64[B]; empty before the first forward pass."""
        return self.rows.lengths

    @property
    def pending(self) -> int:
        """Nodes appended to each row since the last commit."""
        return max((layer.pending for layer in self.layers), default=0)

    @property
    def attending(self) -> list[TreeLayer]:
        """The layers with keys and values."""
        return [layer for layer in self.layers if layer.is_initialized]

    def begin(self, layers: int, like: Tensor) -> None:
        """Makes the layers of an empty cache for writers that do not call `update`; like [B, Hkv, 0, d]."""
        for _ in range(layers):
            layer = self.layer_class_to_replicate()
            layer.lazy_initialization(like, like)
            self.layers.append(layer)

    def room(self, nodes: int) -> None:
        """Adds so many pending nodes, for writers of the layers' buffers themselves."""
        for layer in self.layers:
            layer.append(nodes)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the longest row, and the pending nodes of a layer, or of any where it has no keys."""
        layers = self.layers[layer_idx : layer_idx + 1]  # none before its first update
        return self.rows.longest + (self.pending if layer_idx in self.states else sum(one.pending for one in layers))

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """A layer's convolutional state, [B, ...]; None before its first."""
        return self.states[layer_idx].conv_states[state_idx] if layer_idx in self.states else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """A layer's recurrent state, [B, ...]; None before its first."""
        return self.states[layer_idx].recurrent_states[state_idx] if layer_idx in self.states else None

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs) -> Tensor:
        """Takes a layer's new convolutional states; see transformers' layers of linear attention."""
        return self._states(layer_idx, conv_states).update_conv_state(conv_states, state_idx, **kwargs)

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs) -> Tensor:
        """Takes a layer's new recurrent state; see transformers' layers of linear attention."""
        return self._states(layer_idx, recurrent_states).update_recurrent_state(recurrent_states, state_idx, **kwargs)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether a layer, or any, has states."""
        return bool(self.states) if layer_idx is None else layer_idx in self.states

    def is_recording_past(self, layer_idx: int) -> bool:
        """False: the states after each token are kept instead."""
        return False

    def _states(self, layer: int, like: Tensor) -> States:
        if not self.rows.as_list:
            self.rows.set([0] * len(like), like.device)
        return self.states.setdefault(layer, States())

    def set_lengths(self, lengths: Tensor) -> None:
        """Commits lengths int64[B]: after a right-padded prefill, those of the prompts."""
        self.rows.set(torch.as_tensor(lengths).tolist(), self.rows.device)
        self.forget()

    def forget(self) -> None:
        """Drops the nodes that were appended since the last commit."""
        for layer in self.layers:
            layer.pending = 0
        for states in self.states.values():
            states.accept(torch.zeros_like(self.lengths))

    def commit(self, paths: list[list[int]]) -> None:
        """Commits some of the nodes that were appended since the last commit, a list per row: an accepted path, from
        the root, as indices into that block.
        """
        lengths = self.rows.as_list
        moves = [(row, length + node, length + depth) for row, (length, path) in enumerate(zip(lengths, paths))
                 for depth, node in enumerate(path) if node != depth]  # others stand in their slots already
        if moves:
            rows, origins, goals = torch.tensor(moves, device=self.rows.device).T
            for buffer in (buffer for layer in self.attending for buffer in layer.buffers):
                buffer[:, rows, :, goals] = buffer[:, rows, :, origins]
        for states in self.states.values():
            states.accept(torch.tensor([len(path) for path in paths], device=self.rows.device))
        self.rows.set([length + len(path) for length, path in zip(lengths, paths)], self.rows.device)
        self.forget()

    def join(self, others: Sequence["TreeCache"]) -> None:
        """Appends the rows of other caches of the same model; pending nodes are dropped."""
        caches = self, *others
        self.rows.set([length for cache in caches for length in cache.rows.as_list], self.rows.device)
        for first, *rest in zip(*(cache.attending for cache in caches)):
            first.join(rest)
        for layer, states in self.states.items():
            states.join([cache.states[layer] for cache in others])
        self.forget()

    def select(self, rows: Tensor) -> None:
        """Keeps only the given rows, int64 indices, in this order; finished rows leave a batch so."""
        rows = torch.as_tensor(rows, device=self.rows.device)
        self.rows.set(self.lengths[rows].tolist(), self.rows.device)
        for layer in self.attending:
            layer.take([buffer[:, rows] for buffer in layer.buffers])
        for states in self.states.values():
            states.reorder_cache(rows)
