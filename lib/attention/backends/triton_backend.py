"""The CUDA kernel as a backend; Triton, which CUDA builds of torch include, is imported at its first use."""

import importlib.util
import math
import os

import torch
from torch import Tensor

from lib.attention.backends.mask import SharedMask

KINDS = (torch.float16, torch.bfloat16, torch.float32)
MOST_SPLITS = 64
LEAST_KEYS = 256  # per program; fewer are not worth one


def triton(query: Tensor, key: Tensor, value: Tensor, mask: SharedMask, prefix: list[int], scale, return_lse=True,
           softcap=None):
    """The fused kernel, over as many ranges of keys as fill the GPU. ValueError where it cannot serve the call.

    Layers that share the mask make its bits and the lengths once; only the first layer waits for them.
    """
    reason = refusal(query, key, value)
    if reason:
        raise ValueError(f"backend 'triton' cannot serve this call: {reason}; use backend='auto'")
    from lib.attention.backends.triton_kernel import fused

    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    tree_keys = mask.visible.shape[-1]
    by = ranges(query, key, value, max(prefix) + tree_keys)
    lengths, words = mask.lengths(prefix, query.device), mask.words(query.device)
    with torch.cuda.device_of(query):  # Triton launches on the current device, which need not be theirs
        return fused(query, key, value, words, tree_keys, lengths, scale, splits=by, softcap=softcap)


def ranges(query: Tensor, key: Tensor, value: Tensor, keys: int) -> int:
    """The number of ranges of so many keys in which the kernel fills the GPU for such inputs."""
    from lib.attention.backends.triton_kernel import tiles

    rows = query.shape[1] // key.shape[1] * query.shape[2]
    tile, _ = tiles(rows, max(query.shape[-1], value.shape[-1]), query.itemsize)
    programs = query.shape[0] * key.shape[1] * -(-rows // tile)
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 1
    return splits(programs, processors * (2 if tile <= 64 else 1), keys)


def splits(programs: int, slots: int, keys: int) -> int:
    """The number of ranges of keys, for `programs` unsplit programs on a GPU that runs `slots` at once.

    The smallest number whose share of busy slots is at least 0.9 of the best number's: the last wave of programs is
    seldom full, and each range costs a merge (FlashAttention's heuristic for Flash-Decoding).
    """
    most = max(1, min(MOST_SPLITS, keys // LEAST_KEYS))
    busy = [programs * each / slots / math.ceil(programs * each / slots) for each in range(1, most + 1)]
    return next(each for each, share in enumerate(busy, 1) if share >= 0.9 * max(busy))


def refusal(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why the kernel cannot serve these inputs here; None if it can."""
    if reason := kernel_refusal(query.device.type, query.dtype, max(query.shape[-1], value.shape[-1])):
        return reason
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return "it computes no gradients"
    return None


def kernel_refusal(device: str, dtype: torch.dtype, width: int) -> str | None:
    """Why the kernel cannot serve heads of so many numbers on such a device; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (CUDA builds of torch include it; else pip install triton)"
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it is for CUDA, the tensors are on {device}"
    if dtype not in KINDS:
        return f"it takes float16, bfloat16 and float32, not {str(dtype).removeprefix('torch.')}"
    if device != "cuda" and dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as if it were integers"
    return None if width <= 256 else f"it takes heads of at most 256 numbers, not {width}"
