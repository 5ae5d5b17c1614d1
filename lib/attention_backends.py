"""The backends of tree attention: the plain definition, and faster forms that must agree with it.

A backend maps (query, key, value, mask: SharedMask, prefix: list of B ints, scale, return_lse) to (output, lse or
None), with the shapes of `attention.tree_attention`, which has checked them. Rows whose prefixes differ are taken one
at a time: each then reads its own keys only, and garbage behind a short row cannot leak in, NaN included.
"""

from functools import cached_property
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


class SharedMask:
    """A tree's mask, and its additive forms, each made by the first layer of a forward that asks for it.

    visible bool [mq, mk] or [B, mq, mk]. One object serves one forward and goes with it; as long as it lives, the mask
    must not be written to.
    """

    def __init__(self, visible: Tensor):
        self.visible = visible
        self._made: dict[tuple, Tensor | None] = {}

    def bias(self, query: Tensor, prefix: int, group: int) -> Tensor | None:
        """`folded_bias` for such queries; None for plain decoding, one key that its node sees."""
        kind = query.dtype, query.device, prefix, group
        if kind not in self._made:
            visible = self.visible.to(query.device)
            # On a GPU the question would cost a synchronisation.
            plain = visible.shape[-1] == 1 and not visible.is_cuda and bool(visible.all())
            self._made[kind] = None if plain else folded_bias(query, visible, prefix, group)
        return self._made[kind]

    @cached_property
    def blind(self) -> Tensor:
        """The nodes that see no tree key, bool [B or 1, 1, mq]."""
        return ~self.visible.any(-1).view(-1, 1, self.visible.shape[-2])


def reference(query, key, value, mask, prefix, scale, return_lse=True):
    """The definition, in float64: softmax(q k^T scale + mask) v with an explicit mask, row by row."""
    group, mk = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    tree_mask = mask.visible.to(query.device).expand(len(prefix), -1, -1)
    outputs, lses = [], []
    for row, length in enumerate(prefix):
        k = key[row, :, : length + mk].double().repeat_interleave(group, 0)  # [Hq, prefix + mk, d]
        v = value[row, :, : length + mk].double().repeat_interleave(group, 0)
        scores = query[row].double() @ k.mT * scale  # [Hq, mq, prefix + mk]
        scores[..., length:].masked_fill_(~tree_mask[row], float("-inf"))
        lse = scores.logsumexp(-1)
        outputs.append((scores - lse[..., None]).exp() @ v)
        lses.append(lse)
    return torch.stack(outputs).to(query.dtype), torch.stack(lses).to(_lse_dtype(query))


def folded(query, key, value, mask, prefix, scale, return_lse=True):
    """One fused attention call, the G heads that share a key folded into the query's rows: row i is node i % mq.

    The bias holds zeros for the longest prefix and the tree at its right end; a row with a shorter one takes its tail.
    """
    group, mk, longest = query.shape[1] // key.shape[1], mask.visible.shape[-1], max(prefix)
    rows, bias, parts = _fold(query, group), mask.bias(query, longest, group), []
    for batch, length in _same_length(prefix):
        keys, values = (x[batch, :, : length + mk] for x in (key, value))
        parts.append(_attend(rows[batch], keys, values, _own(bias, batch, longest - length), scale, return_lse))
    return _joined(parts, query, value)


def split(query, key, value, mask, prefix, scale, return_lse=True):
    """Prefix without a mask, tree with one, merged by their log-sum-exps.

    For kernels that take no mask, and for long prefixes, over which a mask costs as much to read as the keys.
    """
    group, mk = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    rows, bias, parts = _fold(query, group), mask.bias(query, 0, group), []
    blind = mask.blind.to(query.device).repeat(1, 1, group)  # of which fused kernels get the log-sum-exp wrong
    for batch, length in _same_length(prefix):
        keys, values = (x[batch, :, length : length + mk] for x in (key, value))
        output, lse = _attend(rows[batch], keys, values, _own(bias, batch), scale, True)
        part = output, lse.masked_fill(_own(blind, batch), float("-inf"))
        if length:
            keys, values = key[batch, :, :length], value[batch, :, :length]
            part = merge(*_attend(rows[batch], keys, values, None, scale, True), *part)
        parts.append(part)
    return _joined(parts, query, value)


BACKENDS: dict[str, Callable] = {"reference": reference, "folded": folded, "split": split}


def merge(output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from the attention over each.

    outputs [..., m, d], lse [..., m]; an empty set has lse -inf. In float32 at least, whatever the outputs' dtype:
    o = (e^la oa + e^lb ob) / (e^la + e^lb). Two empty sets give zeros and -inf, not NaN.
    """
    top = torch.maximum(lse_a, lse_b).clamp_min(torch.finfo(lse_a.dtype).min)
    weight_a, weight_b = (lse_a - top).exp()[..., None], (lse_b - top).exp()[..., None]
    total = weight_a + weight_b
    parts = [weight * output.to(total.dtype).masked_fill(weight == 0, 0) for weight, output in
             ((weight_a, output_a), (weight_b, output_b))]
    smallest = torch.finfo(total.dtype).tiny
    return (parts[0] + parts[1]) / total.clamp_min(smallest), torch.logaddexp(lse_a, lse_b)


def _same_length(prefix: list[int]) -> list[tuple[slice, int]]:
    """Rows that one call can serve: all of them where the prefixes agree, else one at a time."""
    if len(set(prefix)) == 1:
        return [(slice(None), prefix[0])]
    return [(slice(row, row + 1), length) for row, length in enumerate(prefix)]


def _fold(query: Tensor, group: int) -> Tensor:
    """[B, Hkv * G, m, d] -> [B, Hkv, G * m, d], head-major."""
    batch, heads, nodes, dim = query.shape
    return query.reshape(batch, heads // group, group * nodes, dim)


def folded_bias(query: Tensor, tree_mask: Tensor, prefix: int, group: int) -> Tensor:
    """The additive mask of folded queries, [B or 1, 1, G * mq, prefix + mk]: 0 where a node sees, else -inf."""
    *_, nodes, mk = tree_mask.shape
    bias = query.new_zeros(tree_mask.shape[0] if tree_mask.dim() == 3 else 1, 1, nodes, prefix + mk)
    bias[..., prefix:].masked_fill_(~tree_mask.view(-1, 1, nodes, mk), float("-inf"))
    return bias.repeat(1, 1, group, 1)


def _own(bias: Tensor | None, batch: slice, skip: int = 0) -> Tensor | None:
    """The part of a bias that serves these rows of the batch, without its first `skip` keys."""
    if bias is None:
        return None
    own = (bias[batch] if len(bias) > 1 else bias)[..., skip:]
    return own.contiguous() if own.is_cuda else own  # CUDA kernels want their masks aligned


def _joined(parts, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The calls' results as one batch, unfolded to [B, Hq, mq, dv] and [B, Hq, mq]."""
    outputs, lses = zip(*parts)
    output = outputs[0] if len(parts) == 1 else torch.cat(outputs)
    lse = None if lses[0] is None else torch.cat(lses).reshape(query.shape[:-1])
    return output.to(query.dtype).reshape(*query.shape[:-1], value.shape[-1]), lse


def _lse_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _attend(query, key, value, bias, scale, return_lse):
    """Fused attention, `bias` None or additive [B or 1, 1, rows, keys]; torch's public call returns no log-sum-exp."""
    if not return_lse:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale), None
    if query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, attn_mask=bias, scale=scale)
    if bias is None and query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[:2]
    return _softmax_attention(query, key, value, bias, scale)


def _softmax_attention(query, key, value, bias, scale):
    """Unfused attention with its log-sum-exp, in float32 at least."""
    wide = _lse_dtype(query)
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if bias is not None:
        scores += bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(torch.finfo(wide).min)[..., None]).exp()  # a row that sees nothing stays zero
    return weights @ value.to(wide), lse
