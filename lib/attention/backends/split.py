"""Prefix and tree apart, for kernels that take no mask."""

from lib.attention.backends.fold import attend, fold, joined, own, same_length
from lib.attention.backends.merge import merge


def split(query, key, value, mask, prefix, scale, return_lse=True):
    """Prefix without a mask, tree with one, merged by their log-sum-exps.

    For kernels that take no mask, and for long prefixes, over which a mask costs as much to read as the keys.
    """
    group, mk = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    rows, bias, parts = fold(query, group), mask.bias(query, 0, group), []
    blind = mask.blind.to(query.device).repeat(1, 1, group)  # of which fused kernels get the log-sum-exp wrong
    for batch, length in same_length(prefix):
        keys, values = (x[batch, :, length : length + mk] for x in (key, value))
        output, lse = attend(rows[batch], keys, values, own(bias, batch), scale, True)
        part = output, lse.masked_fill(own(blind, batch), float("-inf"))
        if length:
            keys, values = key[batch, :, :length], value[batch, :, :length]
            part = merge(*attend(rows[batch], keys, values, None, scale, True), *part)
        parts.append(part)
    return joined(parts, query, value)
