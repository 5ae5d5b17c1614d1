"""Compiled FlexAttention: the mask is a function of positions that captures the prefix length as a tensor.

Compiling takes many seconds for each kind of shape; a new prefix length needs no compilation, since it is a tensor.
"""

import shutil
from functools import cache

import torch
from torch import Tensor

from lib.attention.backends.folded import joined, same_length
from lib.attention.backends.mask import SharedMask


def flex(query: Tensor, key: Tensor, value: Tensor, mask: SharedMask, prefix: list[int], scale, return_lse=True):
    """One compiled call where the prefixes agree, else one per row. ValueError where it cannot serve the call."""
    reason = refusal(query, key, value, return_lse)
    if reason:
        raise ValueError(f"backend 'flex' cannot serve this call: {reason}; use backend='auto'")
    visible, parts = mask.visible.to(query.device), []
    visible = visible if visible.dim() == 3 else visible[None]
    for batch, length in same_length(prefix):
        own = visible[batch] if len(visible) > 1 else visible
        keys, values = (x[batch, :, : length + visible.shape[-1]] for x in (key, value))
        of_row = torch.arange(len(keys), device=query.device) % len(own)
        at = torch.tensor(length, device=query.device)
        parts.append(_compiled()(query[batch], keys, values, own, of_row, at, scale, return_lse))
    return joined(parts, query, value)


def refusal(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> str | None:
    """Why FlexAttention cannot be compiled for these inputs here; None if it can."""
    kinds = (torch.float32, torch.bfloat16) if query.device.type == "cpu" else (torch.float16, torch.bfloat16)
    dim = query.shape[-1]
    if query.device.type == "cpu" and not shutil.which("g++"):
        return "compiling it for the processor needs g++, which is not on the path"
    if query.dtype not in kinds:
        names = " and ".join(str(kind).removeprefix("torch.") for kind in kinds)
        return f"it takes {names} on {query.device.type}, not {str(query.dtype).removeprefix('torch.')}"
    if dim != value.shape[-1] or dim < 16 or dim & (dim - 1):
        return f"it takes equal heads of 16, 32, 64, ... numbers, not {dim} and {value.shape[-1]}"
    if return_lse and query.device.type == "cpu":
        return "torch cannot compile it with log-sum-exps for the processor"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return "it computes no gradients"
    return None


@cache
def _compiled():
    return torch.compile(_attend, dynamic=True)


def _attend(query, key, value, visible, of_row, prefix, scale, return_lse):
    """visible bool[1 or B, mq, mk]; of_row int64[B]: the mask that each row of the batch takes; prefix int64[]."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def seen(score, batch, head, node, key_at):
        place = torch.clamp(key_at - prefix, min=0)
        return torch.where((key_at < prefix) | visible[of_row[batch], node, place], score, -float("inf"))

    given = dict(score_mod=seen, scale=scale, enable_gqa=True)
    if not return_lse:
        return flex_attention(query, key, value, **given), None
    output, aux = flex_attention(query, key, value, **given, return_aux=AuxRequest(lse=True))
    return output, aux.lse
