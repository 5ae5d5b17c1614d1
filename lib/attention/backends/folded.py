"""The portable default: one fused call over folded queries, with an additive mask."""

from torch import Tensor

from lib.attention.backends.fold import attend, fold, joined, own, same_length


def folded(query, key, value, mask, prefix, scale, return_lse=True):
    """One fused attention call, the G heads that share a key folded into the query's rows: row i is node i % mq.

    The bias holds zeros for the longest prefix and the tree at its right end; a row with a shorter one takes its tail.
    """
    group, mk, longest = query.shape[1] // key.shape[1], mask.visible.shape[-1], max(prefix)
    rows, bias, parts = fold(query, group), mask.bias(query, longest, group), []
    for batch, length in same_length(prefix):
        keys, values = (x[batch, :, : length + mk] for x in (key, value))
        parts.append(attend(rows[batch], keys, values, own(bias, batch, longest - length), scale, return_lse))
    return joined(parts, query, value)


def attend_slots(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float | None) -> Tensor:
    """Tree attention over all slots of buffers [B, Hkv, S, d] by an additive mask [B, 1, G * mq, S]: static shapes."""
    rows = fold(query, query.shape[1] // key.shape[1])
    output, _ = attend(rows, key, value, bias, scale, return_lse=False)
    return output.reshape(*query.shape[:-1], value.shape[-1])
