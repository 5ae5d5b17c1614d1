"""The backends of tree attention: the plain definition, and faster implementations that must agree with it.

A backend maps (query, key, value, mask: SharedMask, prefix: list of B ints, scale, softcap, need_lse) to (output,
log-sum-exp), with the shapes of `tree_attention`, which has checked them; without need_lse the second may be None.
`reference` takes the window and the sinks instead. Keys beyond a row's own prefix and tree never change its result,
even if they are NaN. Logarithms are natural; log-sum-exps [B, Hq, mq] are float32 (float64 for float64).
"""

import ctypes
import importlib.util
import logging
import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.masks import SharedMask
from lib.kernels.build import library, unavailable

ENTRIES = {torch.float32: "onepass_float32", torch.bfloat16: "onepass_bfloat16"}  # of the C++ kernel
log = logging.getLogger(__name__)


def reference(query, key, value, mask: SharedMask, prefix, scale, softcap=None, window=None, sinks=None):
    """softmax(q k^T scale + mask) v in float64 with an explicit mask, row by row: the oracle of all other backends.

    window, sinks: as of `tree_attention`; other backends leave both to the operator.
    """
    group, tree_keys = query.shape[1] // key.shape[1], mask.visible.shape[-1]
    tree_mask = mask.visible.to(query.device).expand(len(prefix), -1, -1)
    outputs, lses = [], []
    for row, length in enumerate(prefix):
        k = key[row, :, : length + tree_keys].double().repeat_interleave(group, 0)  # [Hq, prefix + mk, d]
        v = value[row, :, : length + tree_keys].double().repeat_interleave(group, 0)
        scores = query[row].double() @ k.mT * scale  # [Hq, mq, prefix + mk]
        scores = scores if softcap is None else softcap * (scores / softcap).tanh()
        scores[..., length:].masked_fill_(~tree_mask[row], float("-inf"))
        if window is not None:
            depth = tree_mask[row].cumsum(-1) - 1  # of the keys that a node sees
            committed = torch.arange(length, device=depth.device).expand(len(depth), -1)
            position, node_position = torch.cat([committed, length + depth], 1), length + depth[:, -1:]
            scores.masked_fill_(position <= node_position - window, float("-inf"))
        if sinks is not None:  # one more logit per head, whose value is zero
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(*scores.shape[:2], 1)], -1)
            v = F.pad(v, (0, 0, 0, 1))
        lse = scores.logsumexp(-1)
        outputs.append((scores - lse[..., None]).exp() @ v)
        lses.append(lse)
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return torch.stack(outputs).to(query.dtype), torch.stack(lses).to(lse_dtype)


def folded(query, key, value, mask, prefix, scale, softcap=None, need_lse=True):
    """One fused attention call over folded queries with an additive mask: the portable default.

    The G query heads that share a key head become rows of one call: row i is node i % mq. Rows of different prefix
    lengths take a call each. The mask has zeros for the longest prefix, then the tree; shorter prefixes take its end.
    """
    batch, heads, nodes, dim = query.shape
    group, tree_keys, longest = heads // key.shape[1], mask.visible.shape[-1], max(prefix)
    rows, bias = query.reshape(batch, heads // group, group * nodes, dim), mask.bias(query, longest, group)
    equal = len(set(prefix)) == 1
    calls = [(slice(None), longest)] if equal else [(slice(row, row + 1), prefix[row]) for row in range(batch)]
    outputs, lses = [], []
    for members, length in calls:
        keys, values = key[members, :, : length + tree_keys], value[members, :, : length + tree_keys]
        part = None if bias is None else (bias[members] if len(bias) > 1 else bias)[..., longest - length:]
        if part is not None and part.is_cuda:
            part = part.contiguous()  # CUDA kernels require aligned masks
        if need_lse or softcap is not None:
            output, lse = _softmax_attention(rows[members], keys, values, part, scale, softcap)
            lses.append(lse)
        else:
            output = F.scaled_dot_product_attention(rows[members], keys, values, attn_mask=part, scale=scale)
        outputs.append(output)
    output = outputs[0] if equal else torch.cat(outputs)
    lse = torch.cat(lses).reshape(query.shape[:3]) if lses else None
    return output.to(query.dtype).reshape(batch, heads, nodes, -1), lse


def _softmax_attention(query, key, value, bias, scale, softcap=None):
    """Unfused attention with its log-sum-exp, in float32 at least: torch's public call returns none and has no cap."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    if bias is not None:
        scores += bias
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp() @ value.to(wide), lse


class OnepassCall(ctypes.Structure):
    """The struct `Call` of `onepass_call.h`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "mask", "prefix", "output", "lse")),
        *((name, ctypes.c_int64) for name in ("batch", "kv_heads", "group", "nodes", "tree_keys", "dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("mask_stride", "threads")),
        *((f"{name}_stride", 3 * ctypes.c_int64) for name in ("query", "key", "value")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    ]


def onepass(query, key, value, mask, prefix, scale, softcap=None, need_lse=True):
    """The kernel for processors (`lib/kernels/onepass.cpp`), which reads each key and value once.

    Calls that it cannot serve go to `folded`; the log says so once for each reason. MemoryError without memory.
    """
    if reason := _onepass_refusal(query, key, value):
        say_once(reason)
        return folded(query, key, value, mask, prefix, scale, softcap, need_lse)
    query, key, value = (_rows_packed(x) for x in (query, key, value))
    (batch, heads, nodes, dim), kv_heads, value_dim = query.shape, key.shape[1], value.shape[3]
    visible, lengths = mask.visible.cpu().contiguous(), (ctypes.c_int64 * batch)(*prefix)
    mask_stride = visible[0].numel() if visible.dim() == 3 and len(visible) > 1 else 0
    output = query.new_empty(batch, heads, nodes, value_dim)
    lse = torch.empty(batch, heads, nodes)
    call = OnepassCall(
        *(x.data_ptr() for x in (query, key, value, visible)), ctypes.addressof(lengths), output.data_ptr(),
        lse.data_ptr(), batch, kv_heads, heads // kv_heads, nodes, visible.shape[-1], dim, value_dim, mask_stride,
        torch.get_num_threads(), *((3 * ctypes.c_int64)(*x.stride()[:3]) for x in (query, key, value)), scale,
        softcap or 0)
    if not getattr(library(), ENTRIES[query.dtype])(ctypes.byref(call)):
        raise MemoryError(f"no memory for the parts of tree attention of query {tuple(query.shape)}; use fewer threads")
    return output, lse


def _rows_packed(x: Tensor) -> Tensor:
    """The tensor itself where the numbers of a token are adjacent and rows are aligned to 32 bits, else a copy."""
    batch, head, token, number = x.stride()
    fits = number == 1 and (batch | head | token) * x.itemsize % 4 == 0
    return x if fits and x.data_ptr() % 4 == 0 else x.clone(memory_format=torch.contiguous_format)


@cache
def say_once(reason: str) -> None:
    """Logs why the kernel for processors is not used, once for each reason."""
    log.warning("tree attention: such calls go from 'onepass' to 'folded': %s", reason)


def triton(query, key, value, mask, prefix, scale, softcap=None, need_lse=True):
    """The kernel for GPUs (`lib.attention.triton`). ValueError where it cannot serve the call."""
    if reason := _triton_refusal(query, key, value):
        raise ValueError(f"backend 'triton' cannot serve this call: {reason}; use backend='auto'")
    from lib.attention.triton import fused

    return fused(query, key, value, mask, prefix, scale, softcap)


def _onepass_refusal(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    if query.device.type != "cpu":
        return f"it is for the processor, the tensors are on {query.device.type}"
    if query.dtype not in ENTRIES:
        return f"it takes float32 and bfloat16, not {str(query.dtype).removeprefix('torch.')}"
    if query.shape[-1] % 8 or value.shape[-1] % 8:
        return f"it takes heads of a multiple of 8 numbers, not {query.shape[-1]} and {value.shape[-1]}"
    return _needs_gradients(query, key, value) or unavailable()


def _triton_refusal(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    device = query.device.type
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (CUDA builds of torch include it; else pip install triton)"
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it is for CUDA, the tensors are on {device}"
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it takes float16, bfloat16 and float32, not {str(query.dtype).removeprefix('torch.')}"
    if device != "cuda" and query.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as if it were integers"
    if (width := max(query.shape[-1], value.shape[-1])) > 256:
        return f"it takes heads of at most 256 numbers, not {width}"
    return _needs_gradients(query, key, value)


def _needs_gradients(*inputs: Tensor) -> str | None:
    return "it computes no gradients" if torch.is_grad_enabled() and any(x.requires_grad for x in inputs) else None


BACKENDS = {"reference": reference, "folded": folded, "onepass": onepass, "triton": triton}


def refusal(name: str, query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why a backend cannot serve these inputs on this machine; None if it can. Kernels are compiled at first use."""
    check = {"onepass": _onepass_refusal, "triton": _triton_refusal}.get(name)
    return check and check(query, key, value)
