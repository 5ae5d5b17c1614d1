"""A key/value cache for draft trees: appends in place, keeps the accepted path only, one length a row.

A forward appends a block of nodes behind each row's committed length; further forwards before `keep` append behind that
(a drafter grows its tree a level at a time). `keep` moves the accepted nodes to the block's front and commits them;
the rest is forgotten by being overwritten. Rows are right-padded: slots 0 .. lengths[b] - 1 of row b are committed.
"""

from functools import partial

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

SMALLEST = 128  # slots of a first allocation; from there on a full buffer doubles


class Rows:
    """What the layers share: committed lengths int64[B], as a tensor and, to spare synchronisations, as a list."""

    def __init__(self):
        self.lengths: Tensor | None = None
        self.as_list: list[int] = []

    def set(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.as_list = lengths.tolist()

    @property
    def longest(self) -> int:
        return max(self.as_list, default=0)

    @property
    def even(self) -> bool:
        """Whether all rows have the same length, so that a plain slice serves them all."""
        return len(set(self.as_list)) <= 1


class TreeLayer(CacheLayerMixin):
    """One layer's buffers: keys, values [B, Hkv, capacity, d], of which each row uses lengths[b] + pending slots."""

    def __init__(self, rows: Rows):
        super().__init__()
        self.rows = rows
        self.pending = 0  # nodes appended since the last commit

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Zeros, not whatever memory holds: a masked slot must be finite to count for nothing.
        self.keys, self.values = (s.new_zeros(*s.shape[:2], 0, s.shape[-1]) for s in (key_states, value_states))
        if self.rows.lengths is None:
            self.rows.set(torch.zeros(key_states.shape[0], dtype=torch.long, device=key_states.device))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append [B, Hkv, m, d] behind each row, and return views of all slots up to the longest row's end."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if key_states.shape[0] != len(self.rows.as_list):
            raise ValueError(
                f"{key_states.shape[0]} rows are appended to a cache of {len(self.rows.as_list)}; "
                "start a new TreeCache, or select the rows that remain"
            )
        start, nodes = self.pending, key_states.shape[2]
        self.pending += nodes
        end = self.rows.longest + self.pending
        self._reserve(end)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            if self.rows.even:
                buffer[:, :, end - nodes : end] = states
            else:
                for row, length in enumerate(self.rows.as_list):
                    buffer[row, :, length + start : length + start + nodes] = states[row]
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _reserve(self, slots: int) -> None:
        """Grow by doubling, so that appending costs a constant a token."""
        capacity = self.keys.shape[2]
        if slots <= capacity:
            return
        capacity = max(slots, 2 * capacity, SMALLEST)
        used = self.rows.longest + self.pending
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[-1])
            new[:, :, : min(used, old.shape[2])] = old[:, :, :used]
            setattr(self, name, new)

    def keep(self, nodes: Tensor, lists: list[list[int]]) -> None:
        """Move the block's `nodes` int64[B, k] (`lists`: the same, each row cut to its count) to its front."""
        self.pending = 0
        for buffer in (self.keys, self.values):
            for row, (length, kept) in enumerate(zip(self.rows.as_list, lists)):
                if kept != list(range(len(kept))):  # a path in the first slots already lies where it belongs
                    block = buffer[row, :, length:]
                    block[:, : len(kept)] = block[:, nodes[row, : len(kept)]]

    def select(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized, self.pending = False, 0

    def get_seq_length(self) -> int:
        return self.rows.longest + self.pending

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class TreeCache(Cache):
    """The cache of a batch of trees, one `TreeLayer` a layer of the model, made as the model first calls `update`."""

    def __init__(self):
        self.rows = Rows()
        super().__init__(layer_class_to_replicate=partial(TreeLayer, self.rows))

    @property
    def lengths(self) -> Tensor:
        """Committed tokens a row, int64[B]; empty before the first forward."""
        return torch.zeros(0, dtype=torch.long) if self.rows.lengths is None else self.rows.lengths

    @property
    def pending(self) -> int:
        """Nodes appended to each row since the last commit."""
        return self.layers[0].pending if self.layers else 0

    @property
    def bytes(self) -> int:
        """Bytes that the buffers hold, spare capacity included."""
        return sum(b.nbytes for layer in self.layers if layer.is_initialized for b in (layer.keys, layer.values))

    def set_lengths(self, lengths: Tensor) -> None:
        """Commit lengths int64[B] as they are: after a right-padded prefill, the prompts' own lengths."""
        lengths = torch.as_tensor(lengths, dtype=torch.long, device=self.lengths.device)
        stored = [length + self.pending for length in self.rows.as_list]
        fits = lengths.shape == self.lengths.shape
        if not fits or any(not 0 <= new <= old for new, old in zip(lengths.tolist(), stored)):
            raise ValueError(
                f"lengths {lengths.tolist()} for rows that hold {stored} tokens; give one a row, none longer"
            )
        self.rows.set(lengths)
        for layer in self.layers:
            layer.pending = 0

    def crop(self, lengths: Tensor | int) -> None:
        """Forget all but the first lengths[b] tokens of row b (an int: of each row), pending nodes included."""
        self.set_lengths(torch.as_tensor(lengths).expand(len(self.rows.as_list)).clone())

    def keep(self, nodes: Tensor, counts: Tensor) -> None:
        """Commit of row b the appended nodes nodes[b, :counts[b]], in this order (an accepted path, root 0 included).

        nodes int64[B, k], indices within the block appended since the last commit; counts int64[B], at most k.
        """
        lists = [row[:count] for row, count in zip(nodes.tolist(), counts.tolist())]
        if len(lists) != len(self.rows.as_list) or max(counts.tolist(), default=0) > nodes.shape[1]:
            raise ValueError(
                f"nodes {tuple(nodes.shape)} and counts {counts.tolist()} for {len(self.rows.as_list)} rows; "
                "give one list of nodes a row, and counts no larger than it"
            )
        if any(not 0 <= node < self.pending for kept in lists for node in kept):
            raise ValueError(
                f"nodes {lists} are not all among the {self.pending} appended; count within the block, from 0"
            )
        nodes = nodes.to(self.lengths.device)
        for layer in self.layers:
            layer.keep(nodes, lists)
        self.rows.set(self.lengths + counts.to(self.lengths.device))

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows, int64 indices or bool[B], in this order: finished ones leave."""
        rows = torch.as_tensor(rows, device=self.lengths.device)
        self.rows.set(self.lengths[rows])
        for layer in self.layers:
            layer.select(rows)

    def reset(self) -> None:
        self.rows.lengths, self.rows.as_list = None, []
        super().reset()
