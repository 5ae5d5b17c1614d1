"""Compiled forwards for small blocks: at these sizes most of a forward's time is Python and kernel launches.

`CompiledBlocks` is a stand-in for a model: blocks of few nodes behind a prefix run as one compiled graph with
static shapes over the cache's whole buffers; everything else (prefills, hidden states, long blocks) runs as before.
"""

from typing import Callable

import torch
from torch import Tensor

LONGEST = 64  # nodes of a block that is worth a graph
GRAPHS = 256  # shapes, each a few seconds to compile, before PyTorch runs the rest uncompiled


class CompiledBlocks:
    """A model whose small blocks run compiled; otherwise it is the model (`config`, `device`, `generate`, ...).

    One graph a number of nodes, rows and cache slots; slots double, so that a text meets few. Worth it where many
    rounds of few shapes follow: each takes seconds. compiler: `static_graph`, unless given. slots: what buffers have
    from the start; a model's window spares all further graphs, and lets attention read empty slots.
    """

    def __init__(self, model, compiler: Callable[[Callable], Callable] | None = None, slots: int = 0):
        self.model, self.slots = model, slots
        self._graph = (compiler or static_graph)(_block)

    def __getattr__(self, name: str):
        return getattr(self.__dict__["model"], name)

    def __call__(self, input_ids: Tensor, position_ids: Tensor, *, past_key_values, tree_mask=None, **kwargs):
        rows = past_key_values.rows
        plain = tree_mask is None or input_ids.shape[1] > LONGEST or kwargs.get("output_hidden_states")
        if plain:
            return self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                past_key_values=past_key_values,
                tree_mask=tree_mask,
                **kwargs,
            )
        nodes, start = input_ids.shape[1], past_key_values.pending
        past_key_values.room(nodes, self.slots)
        buffers = [layer.buffers[0] for layer in past_key_values.layers]
        at, slots = rows.slots(start, nodes)
        bias = slot_bias(tree_mask.visible, rows.lengths, buffers[0].shape[-2], start, nodes, self.model.dtype)
        group = self.model.config.num_attention_heads // buffers[0].shape[2]
        logits = self._graph(
            self.model,
            input_ids,
            position_ids,
            kwargs["attention_mask"],
            at,
            slots,
            bias.repeat(1, 1, group, 1),
            buffers,
            kwargs.get("logits_to_keep", 0),
        )
        return BlockOutput(logits)


def static_graph(function: Callable) -> Callable:
    """The function compiled for each of its inputs' shapes, at first use."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    return torch.compile(function, dynamic=False, fullgraph=True)


class BlockOutput:
    """What a compiled block gives: logits [B, m or fewer, V]."""

    hidden_states = None

    def __init__(self, logits: Tensor):
        self.logits = logits


class SlotCache:
    """What a model's layers see as their cache inside a graph: whole buffers, written at given slots."""

    def __init__(self, buffers: list[Tensor], rows: Tensor, slots: Tensor):
        self.buffers, self.rows, self.slots = buffers, rows, slots

    def update(self, key: Tensor, value: Tensor, layer: int, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Writes key and value [B, Hkv, m, d]; returns all slots of the layer."""
        buffer = self.buffers[layer]  # [2, B, Hkv, capacity, d]
        buffer[:, self.rows, :, self.slots] = torch.stack([key, value]).permute(1, 3, 0, 2, 4)
        return buffer[0], buffer[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """Positions are given, nobody needs it."""
        return 0


def _block(model, tokens, positions, nothing, rows, slots, bias, buffers, keep) -> Tensor:
    """What is compiled: the model over a block, its cache the given buffers."""
    out = model(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=nothing,
        past_key_values=SlotCache(buffers, rows, slots),
        slot_bias=bias,
        use_cache=True,
        logits_to_keep=keep,
    )
    return out.logits


def slot_bias(visible: Tensor, lengths: Tensor, capacity: int, start: int, nodes: int, dtype: torch.dtype) -> Tensor:
    """The additive mask over a cache's whole buffers, [B, 1, nodes, capacity]: 0 where a node sees, else -inf.

    visible bool [nodes, start + nodes] or with a leading B: the block's mask over all that is pending; of row b the
    first lengths[b] slots are seen by all.
    """
    rows, device = len(lengths), visible.device
    slots = torch.arange(capacity, device=device)
    seen = (slots < lengths.to(device)[:, None])[:, None].expand(-1, nodes, -1).clone()
    visible = visible.expand(rows, -1, -1)
    places = lengths.to(device)[:, None, None] + torch.arange(start + nodes, device=device)
    seen.scatter_(2, places.expand(-1, nodes, -1), visible)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))[:, None]
