"""The definition of tree attention, and PyTorch's fused attention over folded queries: in one call with a mask over
prefix and tree, or split between both.

Folding makes the G query heads that share a key head rows of one call: row i is node i % mq.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.backends.mask import Span


def reference(query, key, value, mask, prefix, scale, return_lse=True, softcap=None, span=Span(), sinks=None):
    """softmax(q k^T scale + mask) v in float64 with an explicit mask, row by row: the oracle of all other backends.

    span, sinks: as of `tree_attention`, by their definition; other backends leave both to the operator.
    """
    group, mk = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    tree_mask = mask.visible.to(query.device).expand(len(prefix), -1, -1)
    outputs, lses = [], []
    for row, length in enumerate(prefix):
        k = key[row, :, : length + mk].double().repeat_interleave(group, 0)  # [Hq, prefix + mk, d]
        v = value[row, :, : length + mk].double().repeat_interleave(group, 0)
        scores = query[row].double() @ k.mT * scale  # [Hq, mq, prefix + mk]
        scores = scores if softcap is None else softcap * (scores / softcap).tanh()
        scores[..., length:].masked_fill_(~tree_mask[row], float("-inf"))
        if span.least is not None:
            depth = tree_mask[row].cumsum(-1)  # one more than that of the keys which a node sees
            place = torch.cat([torch.arange(length, device=depth.device).expand(len(depth), -1), length + depth - 1], 1)
            scores.masked_fill_(place < span.first(length + depth[:, -1:] - 1), float("-inf"))
        if sinks is not None:  # one more logit per head, whose value is zero
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(*scores.shape[:2], 1)], -1)
            v = torch.nn.functional.pad(v, (0, 0, 0, 1))
        lse = scores.logsumexp(-1)
        outputs.append((scores - lse[..., None]).exp() @ v)
        lses.append(lse)
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return torch.stack(outputs).to(query.dtype), torch.stack(lses).to(lse_dtype)


def folded(query, key, value, mask, prefix, scale, return_lse=True, softcap=None):
    """One fused attention call over folded queries with an additive mask: the portable default.

    The bias holds zeros for the longest prefix, then the tree; a row with a shorter prefix takes its end.
    """
    group, mk, longest = query.shape[1] // key.shape[1], mask.visible.shape[-1], max(prefix)
    rows, bias, parts = fold(query, group), mask.bias(query, longest, group), []
    for batch, length in same_length(prefix):
        keys, values = (x[batch, :, : length + mk] for x in (key, value))
        parts.append(attend(rows[batch], keys, values, own(bias, batch, longest - length), scale, return_lse, softcap))
    return joined(parts, query, value)


def split(query, key, value, mask, prefix, scale, return_lse=True, softcap=None):
    """Attention over the prefix without a mask and over the tree with one, merged by their log-sum-exps.

    For kernels that take no mask, and for long prefixes, for which reading a mask takes as long as reading the keys.
    """
    group, mk = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    rows, bias, parts = fold(query, group), mask.bias(query, 0, group), []
    blind = mask.blind.to(query.device).repeat(1, 1, group)  # rows for which fused kernels return a wrong log-sum-exp
    for batch, length in same_length(prefix):
        keys, values = (x[batch, :, length : length + mk] for x in (key, value))
        output, lse = attend(rows[batch], keys, values, own(bias, batch), scale, True, softcap)
        part = output, lse.masked_fill(own(blind, batch), float("-inf"))
        if length:
            keys, values = key[batch, :, :length], value[batch, :, :length]
            part = merge(*attend(rows[batch], keys, values, None, scale, True, softcap), *part)
        parts.append(part)
    return joined(parts, query, value)


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


def attend(query, key, value, bias, scale, return_lse, softcap=None):
    """Fused attention of folded rows: output [B, Hkv, rows, dv], log-sum-exp [B, Hkv, rows] or None.

    query [B, Hkv, rows, d]; key, value [B, Hkv, keys, d or dv]; bias None or additive [B or 1, 1, rows, keys]. torch's
    public call returns no log-sum-exp, and none caps scores.
    """
    if softcap is not None:
        return _softmax_attention(query, key, value, bias, scale, softcap)
    if not return_lse:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale), None
    if query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, attn_mask=bias, scale=scale)
    if bias is None and _flash_serves(query, value):
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[:2]
    return _softmax_attention(query, key, value, bias, scale)


def same_length(prefix: list[int]) -> list[tuple[slice, int]]:
    """Rows that one call can serve: all of them where the prefixes agree, else one at a time."""
    if len(set(prefix)) == 1:
        return [(slice(None), prefix[0])]
    return [(slice(row, row + 1), length) for row, length in enumerate(prefix)]


def fold(query: Tensor, group: int) -> Tensor:
    """[B, Hkv * G, m, d] -> [B, Hkv, G * m, d], head-major."""
    batch, heads, nodes, dim = query.shape
    return query.reshape(batch, heads // group, group * nodes, dim)


def own(bias: Tensor | None, batch: slice, skip: int = 0) -> Tensor | None:
    """The part of a bias that serves these rows of the batch, without its first `skip` keys."""
    if bias is None:
        return None
    part = (bias[batch] if len(bias) > 1 else bias)[..., skip:]
    return part.contiguous() if part.is_cuda else part  # CUDA kernels require aligned masks


def joined(parts, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The results of several calls as one batch, unfolded to [B, Hq, mq, dv] and [B, Hq, mq]."""
    outputs, lses = zip(*parts)
    output = outputs[0] if len(parts) == 1 else torch.cat(outputs)
    lse = None if lses[0] is None else torch.cat(lses).reshape(query.shape[:-1])
    return output.to(query.dtype).reshape(*query.shape[:-1], value.shape[-1]), lse


def _flash_serves(query: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes such tensors: on a GPU of Ampere or later, equal heads of 8, 16, ... 256 numbers."""
    halves, dim = query.dtype in (torch.float16, torch.bfloat16), query.shape[-1]
    fits = dim == value.shape[-1] and dim % 8 == 0 and dim <= 256
    return query.is_cuda and halves and fits and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _softmax_attention(query, key, value, bias, scale, softcap=None):
    """Unfused attention with its log-sum-exp, in float32 at least."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    if bias is not None:
        scores += bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(torch.finfo(wide).min)[..., None]).exp()  # a row that sees no key stays zero
    return weights @ value.to(wide), lse
