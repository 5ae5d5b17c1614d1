"""Products of few rows in C++ (`rows.h`), over PyTorch's own weights or pairs of them, and their requirements."""

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
from lib.lab.processor import free_memory

HERE = Path(__file__).parent
SOURCES = (*(HERE / name for name in ("blocks.cpp", "fill.h", "forward.h", "rows.h", "few_rows.h", "paired_rows.h",
                                      "tile_rows.h", "tiles.h", "no_tiles.h", "lanes.h", "lanes_avx512.h",
                                      "lanes_avx2.h", "onepass_call.h")),)
MOST_ROWS = 512  # PyTorch's products are faster beyond
MOST_COPIED = 0.25  # most of the free memory that a second copy of weights may take
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
    if weights[0].dtype == torch.bfloat16 and "amx_bf16" in processor.flags():
        return "the processor's matrix units are faster for bfloat16"
    return onepass.unavailable() or build.unavailable(*SOURCES)


def most_rows(in_pairs: bool) -> int:
    """Rows beyond which PyTorch's products are faster: no number, for weights in pairs without matrix units."""
    return sys.maxsize if in_pairs and "amx_bf16" not in processor.flags() else MOST_ROWS


def linear(weight: Tensor, bias: Tensor | None, pairs: Tensor | None = None):
    """x [..., in] -> x W^T + b [..., out] without gradients, for weights that `weights_refusal` allows.

    pairs: the weights as `paired` gives them, which are then read instead. PyTorch computes products of many rows, and
    those with inputs of another dtype or width, which it refuses.
    """
    matrix, run = matrix_of(weight, bias, pairs), getattr(build.library(*SOURCES), f"linear_{NAMES[weight.dtype]}")
    matrix.kept, most = pairs, most_rows(pairs is not None)  # the struct holds an address alone

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
    """The struct of weight [out, in], bias [out], `paired` weights and, for int8, scale float32[out].

    The caller keeps the tensors alive.
    """
    return Matrix(*map(start_of, (weight, bias, pairs, scale)), *weight.shape)


def paired(weight: Tensor) -> Tensor | None:
    """Weights [out, in] in the order in which products of few rows read them fastest (see `few_rows.h`).

    int32[out / 16, in / 2, 16] for bfloat16 numbers, two neighbours of a row per word; int8[out / 16, in, 16] for int8
    numbers; None for others.
    """
    if weight.dtype == torch.int8:
        return _in_sixteens(weight).contiguous()
    if weight.dtype == torch.bfloat16:
        whole = weight.detach().view(torch.int16).int()
    else:
        bits = weight.detach().view(torch.int32)
        if (bits[:1] & 0xFFFF).any() or (bits & 0xFFFF).any():  # the first row alone tells most float32 weights apart
            return None
        whole = bits >> 16
    first, second = _in_sixteens(whole & 0xFFFF).unflatten(1, (-1, 2)).unbind(2)
    return (second << 16 | first).contiguous()


def _in_sixteens(weight: Tensor) -> Tensor:
    """Weights [out, in] as [out / 16, in, 16], padded with zeros to multiples of 64 outputs and 32 inputs."""
    whole = F.pad(weight, (0, -weight.shape[1] % 32, 0, -len(weight) % 64))
    return whole.unflatten(0, (-1, 16)).transpose(1, 2)


def fills_the_memory(weights: Iterable[Tensor], each: int | None = None) -> bool:
    """Whether copies of the weights, with `each` bytes per number or their own, take too much of the free memory."""
    weights = list(weights)
    held = sum(weight.numel() * (each or weight.element_size()) for weight in weights)
    return held > 0 and held > MOST_COPIED * free_memory(weights[0].device)


def start_of(tensor: Tensor | None) -> int | None:
    """The address of a tensor's numbers; None for none."""
    return None if tensor is None else tensor.data_ptr()
