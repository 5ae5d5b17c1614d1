"""Products of few rows, in C++ (`rows.h`), over PyTorch's own weights or pairs of them; and what they need to run."""

import ctypes
import sys
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.kernels import build, onepass
from lib.lab import processor
from lib.lab.timing import free_memory

HERE = Path(__file__).parent
SOURCES = (*(HERE / name for name in ("blocks.cpp", "fill.h", "forward.h", "rows.h", "few_rows.h", "paired_rows.h",
                                      "tile_rows.h", "tiles.h", "lanes.h", "onepass_call.h")),)
MOST_ROWS = 512  # of products that PyTorch's are faster than beyond
MOST_COPIED = 0.25  # of the free memory that weights may take to be held a second time
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Matrix(ctypes.Structure):
    """The struct of the same name in `few_rows.h`."""

    _fields_ = [*((name, c_void_p) for name in ("weight", "bias", "paired", "scale")),
                *((name, c_int64) for name in ("out", "in"))]


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


def most_rows(in_pairs: bool) -> int:
    """Rows beyond which PyTorch's products are faster than those here: never, with weights in pairs and no matrix units.
    """
    return sys.maxsize if in_pairs and "amx_bf16" not in processor.flags() else MOST_ROWS


def linear(weight: Tensor, bias: Tensor | None, pairs: Tensor | None = None):
    """x [..., in] -> x W^T + b [..., out], with weights that `weights_refusal` lets in, read as `paired` where they are
    given so; no gradients.

    Many rows, and what does not fit the weights, are PyTorch's.
    """
    matrix, run = matrix_of(weight, bias, pairs), getattr(build.library(*SOURCES), f"linear_{NAMES[weight.dtype]}")
    matrix.kept, most = pairs, most_rows(pairs is not None)  # the struct only points to them

    def apply(x: Tensor) -> Tensor:
        fits = x.dtype == weight.dtype and x.shape[-1] == weight.shape[1]
        if not fits or (count := x.numel() // x.shape[-1]) > most:
            return F.linear(x, weight, bias)
        rows = x.contiguous()
        to = x.new_empty(*x.shape[:-1], len(weight))
        run(ctypes.byref(matrix), c_void_p(rows.data_ptr()), c_void_p(to.data_ptr()), c_int64(count),
            c_int64(torch.get_num_threads()))
        return to

    return apply


def matrix_of(weight: Tensor, bias: Tensor | None, pairs: Tensor | None = None, scale: Tensor | None = None) -> Matrix:
    """The struct of weight [out, in], bias [out], `paired` weights, and of int8 ones scale float32[out]; the caller keeps
    them alive.
    """
    return Matrix(*map(start_of, (weight, bias, pairs, scale)), *weight.shape)


def paired(weight: Tensor) -> Tensor | None:
    """Weights [out, in] as products of few rows read them fastest (see `few_rows.h`): bfloat16 numbers, neighbours of a
    row in a word, int32[out / 16, in / 2, 16]; or int8 ones, int8[out / 16, in, 16]. None where they are neither.
    """
    if weight.dtype == torch.int8:
        return _in_sixteens(weight).contiguous()
    if weight.dtype == torch.bfloat16:
        whole = weight.detach().view(torch.int16).int()
    else:
        bits = weight.detach().view(torch.int32)
        if (bits[:1] & 0xFFFF).any() or (bits & 0xFFFF).any():  # a trained float32 weight shows in its first row
            return None
        whole = bits >> 16
    first, second = _in_sixteens(whole & 0xFFFF).unflatten(1, (-1, 2)).unbind(2)
    return (second << 16 | first).contiguous()


def _in_sixteens(weight: Tensor) -> Tensor:
    """Of weights [out, in] sixteen outputs side by side, [out / 16, in, 16], zeros up to whole 64 outputs and 32
    numbers.
    """
    whole = F.pad(weight, (0, -weight.shape[1] % 32, 0, -len(weight) % 64))
    return whole.unflatten(0, (-1, 16)).transpose(1, 2)


def fills_the_memory(weights: Iterable[Tensor], each: int | None = None) -> bool:
    """Whether copies of the weights, of `each` bytes a number or as they are, are too large to be held."""
    weights = list(weights)
    held = sum(weight.numel() * (each or weight.element_size()) for weight in weights)
    return held > 0 and held > MOST_COPIED * free_memory(weights[0].device)


def start_of(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin; None for none."""
    return None if tensor is None else tensor.data_ptr()
