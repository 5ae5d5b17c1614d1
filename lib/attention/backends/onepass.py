"""The kernel for processors: C++ that reads each key and value once, compiled at its first use.

Calls that it cannot serve go to `folded`; the log says so once for each reason. In lib/kernels, `onepass.cpp` says how
it computes, `onepass_panels.h` holds one tile's computation, `onepass_tiles.h` and `onepass_amx.h` its innermost loops.
"""

import ctypes
import logging
from functools import cache

import torch
from torch import Tensor

from lib.attention.backends.folded import folded
from lib.attention.backends.mask import SharedMask
from lib.kernels.build import library, unavailable

ENTRIES = {torch.float32: "onepass_float32", torch.bfloat16: "onepass_bfloat16"}
Strides = 3 * ctypes.c_int64
log = logging.getLogger(__name__)


class Call(ctypes.Structure):
    """The struct of the same name in `onepass_call.h`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "mask", "prefix", "output", "lse")),
        *((name, ctypes.c_int64) for name in ("batch", "kv_heads", "group", "nodes", "tree_keys", "dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("mask_stride", "threads")),
        *((f"{name}_stride", Strides) for name in ("query", "key", "value")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    ]


def onepass(query: Tensor, key: Tensor, value: Tensor, mask: SharedMask, prefix: list[int], scale, return_lse=True,
            softcap=None):
    """The kernel's result; that of `folded` where the kernel cannot serve such inputs. MemoryError without memory."""
    reason = refusal(query, key, value)
    if reason:
        say_once(reason)
        return folded(query, key, value, mask, prefix, scale, return_lse, softcap)
    query, key, value = (_rows_packed(x) for x in (query, key, value))
    (batch, heads, nodes, dim), kv_heads, value_dim = query.shape, key.shape[1], value.shape[3]
    visible, lengths = mask.visible.cpu().contiguous(), (ctypes.c_int64 * batch)(*prefix)
    stride = visible[0].numel() if visible.dim() == 3 and len(visible) > 1 else 0
    output = query.new_empty(batch, heads, nodes, value_dim)
    lse = torch.empty(batch, heads, nodes)
    call = Call(*(x.data_ptr() for x in (query, key, value, visible)),
                *(ctypes.addressof(lengths), output.data_ptr(), lse.data_ptr()),
                *(batch, kv_heads, heads // kv_heads, nodes, visible.shape[-1], dim, value_dim),
                *(stride, torch.get_num_threads()), *(Strides(*x.stride()[:3]) for x in (query, key, value)),
                *(scale, softcap or 0))
    if not getattr(library(), ENTRIES[query.dtype])(ctypes.byref(call)):
        raise MemoryError(f"no memory for the parts of tree attention of query {tuple(query.shape)}; use fewer threads")
    return output, lse


def refusal(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why the kernel cannot serve these inputs here; None if it can. Compiles the kernel at its first use."""
    if query.device.type != "cpu":
        return f"it is for the processor, the tensors are on {query.device.type}"
    if query.dtype not in ENTRIES:
        return f"it takes float32 and bfloat16, not {str(query.dtype).removeprefix('torch.')}"
    if query.shape[-1] % 8 or value.shape[-1] % 8:
        return f"it takes heads of a multiple of 8 numbers, not {query.shape[-1]} and {value.shape[-1]}"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return "it computes no gradients"
    return unavailable()


@cache
def say_once(reason: str) -> None:
    """Logs why the kernel is not used, once for each reason."""
    log.warning("tree attention: such calls go from 'onepass' to 'folded': %s", reason)


def _rows_packed(x: Tensor) -> Tensor:
    """The tensor itself where the numbers of a token are adjacent and rows are aligned to 32 bits, else a copy."""
    batch, head, token, number = x.stride()
    fits = number == 1 and (batch | head | token) * x.itemsize % 4 == 0
    return x if fits and x.data_ptr() % 4 == 0 else x.clone(memory_format=torch.contiguous_format)
