"""The CUDA kernel as a backend; Triton, which CUDA builds of torch bring along, is imported at its first use."""

import importlib.util
import os

import torch
from torch import Tensor

from lib.attention_backends.mask import SharedMask

KINDS = (torch.float16, torch.bfloat16, torch.float32)
MOST_SPLITS = 64
LEAST_KEYS = 256  # fewer keys are not worth a program of their own


def triton(query: Tensor, key: Tensor, value: Tensor, mask: SharedMask, prefix: list[int], scale, return_lse=True):
    """The fused kernel, over as many ranges of keys as fill the GPU twice. ValueError where it cannot serve."""
    reason = refusal(query, key, value)
    if reason:
        raise ValueError(f"backend 'triton' cannot serve this call: {reason}; use backend='auto'")
    from lib.attention_backends.triton_kernel import fused, pack

    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    visible = mask.visible.to(query.device)
    lengths = torch.tensor(prefix, dtype=torch.int32, device=query.device)
    longest = max(prefix) + visible.shape[-1]
    return fused(query, key, value, pack(visible), visible.shape[-1], lengths, scale,
                 splits=splits(query, key, longest))


def splits(query: Tensor, key: Tensor, longest: int) -> int:
    """Ranges of keys, so that there are twice as many programs as the device has processors."""
    rows = query.shape[1] // key.shape[1] * query.shape[2]
    programs = query.shape[0] * key.shape[1] * -(-rows // 128)
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 1
    return max(1, min(-(-2 * processors // programs), longest // LEAST_KEYS, MOST_SPLITS))


def refusal(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why the kernel cannot serve these inputs here; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (CUDA builds of torch bring it; else pip install triton)"
    if not query.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it is for CUDA, the tensors are on {query.device.type}"
    if query.dtype not in KINDS:
        return f"it knows float16, bfloat16 and float32, not {str(query.dtype).removeprefix('torch.')}"
    if not query.is_cuda and query.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as if it were whole numbers"
    if max(query.shape[-1], value.shape[-1]) > 256:
        return f"it takes heads of at most 256 numbers, not {max(query.shape[-1], value.shape[-1])}"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return "it computes no gradients"
    return None
