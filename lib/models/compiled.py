"""Compiled forward passes of small blocks: at these sizes most of the time goes to Python and kernel launches.

`CompiledBlocks` is a stand-in for a model: blocks of few nodes after a prefix run as one compiled graph with static
shapes over the cache's whole buffers; all else (prefills, hidden states, long blocks) runs as before.
"""

from typing import Callable

import torch
from torch import Tensor

from lib.models.fused import BlockOutput

LONGEST = 64  # nodes of a block that is worth a graph
GRAPHS = 256  # shapes to compile, a few seconds each; PyTorch runs any further ones uncompiled


class CompiledBlocks:
    """A model whose small blocks run compiled; all other attributes (`config`, `generate`, ...) are the model's.

    Each number of nodes, rows and cache slots needs a graph, and each graph takes seconds to compile; slots double, so
    that a text needs few graphs. Worth it for many rounds of few shapes.
    compiler: `static_graph`, unless given.
    slots: the least capacity of the buffers. The model's window avoids all further graphs, but attention then reads
        empty slots.
    """

    def __init__(self, model, compiler: Callable[[Callable], Callable] | None = None, slots: int = 0):
        self.model, self.slots = model, slots
        self._graph = (compiler or static_graph)(_block)

    def __getattr__(self, name: str):
        return getattr(self.__dict__["model"], name)

    def __call__(self, input_ids: Tensor, position_ids: Tensor, *, past_key_values, tree_mask=None, **kwargs):
        rows = past_key_values.rows
        if tree_mask is None or input_ids.shape[1] > LONGEST or kwargs.get("output_hidden_states"):
            return self.model(input_ids=input_ids, position_ids=position_ids, past_key_values=past_key_values,
                              tree_mask=tree_mask, **kwargs)
        nodes, start = input_ids.shape[1], past_key_values.pending
        past_key_values.room(nodes, self.slots)
        buffers = [layer.buffers[0] for layer in past_key_values.layers]
        at, slots = rows.slots(start, nodes)
        bias = slot_bias(tree_mask.visible, rows.lengths, buffers[0].shape[-2], start, nodes, self.model.dtype)
        group = self.model.config.num_attention_heads // buffers[0].shape[2]
        logits = self._graph(self.model, input_ids, position_ids, kwargs["attention_mask"], at, slots,
                             bias.repeat(1, 1, group, 1), buffers, kwargs.get("logits_to_keep", 0))
        return BlockOutput(logits, None)


def static_graph(function: Callable) -> Callable:
    """The function compiled for each of its inputs' shapes, at first use."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    return torch.compile(function, dynamic=False, fullgraph=True)


class SlotCache:
    """The cache of a model's layers inside a graph: whole buffers, written at given slots."""

    def __init__(self, buffers: list[Tensor], rows: Tensor, slots: Tensor):
        self.buffers, self.rows, self.slots = buffers, rows, slots

    def update(self, key: Tensor, value: Tensor, layer: int, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes key and value [B, Hkv, m, d]; returns all slots of the layer."""
        buffer = self.buffers[layer]  # [2, B, Hkv, capacity, d]
        buffer[:, self.rows, :, self.slots] = torch.stack([key, value]).permute(1, 3, 0, 2, 4)
        return buffer[0], buffer[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """0: transformers asks for it, but positions are given."""
        return 0


def _block(model, tokens, positions, no_mask, rows, slots, bias, buffers, keep) -> Tensor:
    """The compiled function: the model over a block, with the given buffers as its cache."""
    out = model(input_ids=tokens, position_ids=positions, attention_mask=no_mask,
                past_key_values=SlotCache(buffers, rows, slots), slot_bias=bias, use_cache=True, logits_to_keep=keep)
    return out.logits


def slot_bias(visible: Tensor, lengths: Tensor, capacity: int, start: int, nodes: int, dtype: torch.dtype) -> Tensor:
    """The additive mask over a cache's whole buffers, [B, 1, nodes, capacity]: 0 where a node sees a slot, else -inf.

    visible: bool [nodes, start + nodes] or with a leading B, the block's mask over all pending nodes; all nodes see the
    first lengths[b] slots of row b.
    """
    rows, device = len(lengths), visible.device
    slots = torch.arange(capacity, device=device)
    seen = (slots < lengths.to(device)[:, None])[:, None].expand(-1, nodes, -1).clone()
    visible = visible.expand(rows, -1, -1)
    places = lengths.to(device)[:, None, None] + torch.arange(start + nodes, device=device)
    seen.scatter_(2, places.expand(-1, nodes, -1), visible)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))[:, None]
