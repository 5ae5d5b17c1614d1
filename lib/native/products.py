"""Products of few rows with PyTorch's own weights, in C++ (`few_rows.h`), and what machine and weights they need."""

import ctypes
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lib import processor
from lib.attention_backends import onepass
from lib.native import build

HERE = Path(__file__).parent
SOURCES = (*(HERE / name for name in ("blocks.cpp", "forward.h", "few_rows.h", "lanes.h")),
           onepass.SOURCES[0].with_name("onepass_call.h"))
MOST_ROWS = 512  # beyond, products in blocks are faster
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Matrix(ctypes.Structure):
    """The struct of the same name in `few_rows.h`."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("out", c_int64), ("in", c_int64)]


def weights_refusal(weights: Sequence[Tensor]) -> str | None:
    """Why products with such weights do not run here; None if they do. Compiles the C++ at its first use."""
    kinds = {(weight.dtype, weight.device.type) for weight in weights}
    if len(kinds) > 1 or not kinds <= {(dtype, "cpu") for dtype in NAMES}:
        return f"its weights are {' and '.join(sorted(f'{dtype} on {device}' for dtype, device in kinds))}"
    if not all(weight.is_contiguous() for weight in weights):
        return "its weights are not contiguous"
    if weights[0].dtype == torch.bfloat16 and "avx512_bf16" not in processor.flags():
        return "the processor has no avx512_bf16"
    if weights[0].dtype == torch.bfloat16 and "amx_bf16" in processor.flags():
        return "the processor's matrix units are faster for bfloat16"
    return onepass.unavailable() or build.unavailable(*SOURCES)


def linear(weight: Tensor, bias: Tensor | None):
    """x [..., in] -> x W^T + b [..., out], with weights that `weights_refusal` lets in; no gradients.

    Many rows, and what does not fit the weights, are PyTorch's.
    """
    matrix, run = matrix_of(weight, bias), getattr(build.library(*SOURCES), f"linear_{NAMES[weight.dtype]}")

    def apply(x: Tensor) -> Tensor:
        fits = x.dtype == weight.dtype and x.shape[-1] == weight.shape[1]
        if not fits or (count := x.numel() // x.shape[-1]) > MOST_ROWS:
            return F.linear(x, weight, bias)
        rows = x.contiguous()
        to = x.new_empty(*x.shape[:-1], len(weight))
        run(ctypes.byref(matrix), c_void_p(rows.data_ptr()), c_void_p(to.data_ptr()), c_int64(count),
            c_int64(torch.get_num_threads()))
        return to

    return apply


def matrix_of(weight: Tensor, bias: Tensor | None) -> Matrix:
    """The struct of weight [out, in] and bias [out], which the caller keeps alive."""
    return Matrix(weight.data_ptr(), None if bias is None else bias.data_ptr(), *weight.shape)


def start_of(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin; None for none."""
    return None if tensor is None else tensor.data_ptr()
