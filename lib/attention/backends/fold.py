"""Folding: the G query heads that share a key become rows of one call; and the fused call itself."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
    own = (bias[batch] if len(bias) > 1 else bias)[..., skip:]
    return own.contiguous() if own.is_cuda else own  # CUDA kernels want their masks aligned


def joined(parts, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The calls' results as one batch, unfolded to [B, Hq, mq, dv] and [B, Hq, mq]."""
    outputs, lses = zip(*parts)
    output = outputs[0] if len(parts) == 1 else torch.cat(outputs)
    lse = None if lses[0] is None else torch.cat(lses).reshape(query.shape[:-1])
    return output.to(query.dtype).reshape(*query.shape[:-1], value.shape[-1]), lse


def lse_dtype(query: Tensor) -> torch.dtype:
    """The dtype of log-sum-exps, and of what is merged: float32 at least."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def attend(query, key, value, bias, scale, return_lse):
    """Fused attention of folded rows: output [B, Hkv, rows, dv], log-sum-exp [B, Hkv, rows] or None.

    query [B, Hkv, rows, d]; key, value [B, Hkv, keys, d or dv]; bias None or additive [B or 1, 1, rows, keys]. torch's
    public call returns no log-sum-exp.
    """
    if not return_lse:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale), None
    if query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, attn_mask=bias, scale=scale)
    if bias is None and _flash_serves(query, value):
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[:2]
    return _softmax_attention(query, key, value, bias, scale)


def _flash_serves(query: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes such tensors: on a GPU of Ampere or later, equal heads of 8, 16, ... 256 numbers."""
    halves, dim = query.dtype in (torch.float16, torch.bfloat16), query.shape[-1]
    fits = dim == value.shape[-1] and dim % 8 == 0 and dim <= 256
    return query.is_cuda and halves and fits and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _softmax_attention(query, key, value, bias, scale):
    """Unfused attention with its log-sum-exp, in float32 at least."""
    wide = lse_dtype(query)
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if bias is not None:
        scores += bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(torch.finfo(wide).min)[..., None]).exp()  # a row that sees nothing stays zero
    return weights @ value.to(wide), lse
