"""Products of few rows in C++ (`rows.h`), over PyTorch's own weights or `panels` of them, and their requirements."""

import ctypes
from contextlib import suppress
from ctypes import c_int64, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.kernels import build
from lib.kernels.build import CannotServe
from lib.kernels.panels import Panels, of_16_bits

MOST_ROWS = 512  # of weights that are in no panels; PyTorch's products are faster beyond
TIME_RATIO = 0.95  # to float32, which is more exact: bfloat16 is taken where it needs less than this share of the time
ROUNDED = 16, 32  # groups of weights in blocks whose inputs may be rounded
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Matrix(ctypes.Structure):
    """The struct of the same name in `few_rows.h`."""

    _fields_ = [*((name, c_void_p) for name in ("weight", "bias", "panels", "scale", "block_scale", "block_offset")),
                *((name, c_int64) for name in ("out", "inputs", "group", "kind", "short_factors", "rounded"))]


def check_weights(weights: Sequence[Tensor]) -> None:
    """CannotServe where products with such weights do not run here. Compiles the C++ at its first use."""
    kinds = {f"{weight.dtype} on {weight.device.type}" for weight in weights}
    if len(kinds) > 1 or not kinds <= {f"{dtype} on cpu" for dtype in NAMES}:
        raise CannotServe(f"its weights are {' and '.join(sorted(kinds))}")
    if not all(weight.is_contiguous() for weight in weights):
        raise CannotServe("its weights are not contiguous")
    build.library()


def rounds(panels: Panels) -> bool:
    """Whether inputs of weights in these panels are rounded to bytes here, with which products take half the time."""
    return panels.group in ROUNDED and build.unavailable() is None and bool(build.library().rounds())


@cache
def faster_in_bfloat16() -> bool:
    """Whether a product of eight rows takes less time in bfloat16 than in float32 over the same weights of 16 bits;
    measured once and kept beside the library, so that all processes agree.
    """
    kept = Path(build.library()._name).with_suffix(".bfloat16")
    if kept.exists():
        return kept.read_text() == "faster"
    from lib.lab.timing import interleaved

    weights = of_16_bits(torch.ones(1024, 1024, dtype=torch.bfloat16))
    calls = {name: partial(linear(None, None, weights, dtype), torch.ones(8, 1024, dtype=dtype))
             for dtype, name in NAMES.items()}
    timed = interleaved(calls, repeats=41, seconds=1.0, generator=torch.Generator().manual_seed(0))
    faster = timed["bfloat16"].lower < TIME_RATIO * timed["float32"].lower
    with suppress(OSError):  # others' libraries lie where this user cannot write
        kept.write_text("faster" if faster else "slower")
    return faster


def linear(weight: Tensor | None, bias: Tensor | None, panels: Panels | None = None, dtype=torch.float32) -> Callable:
    """x [..., in] -> x W^T + b [..., out] without gradients. CannotServe as `check_weights`.

    panels: the weights in panels, which are then read instead; all products are theirs where `weight` is None, for x of
    this dtype, with ValueError for others. Otherwise PyTorch computes products of many rows, and refuses inputs of
    another dtype or width.
    """
    if weight is not None:
        check_weights([weight])
        dtype = weight.dtype
    bias = None if bias is None else bias.to(dtype)  # the kernel reads it in the dtype of the inputs
    matrix, run = matrix_of(weight, bias, panels), getattr(build.library(), f"linear_{NAMES[dtype]}")
    matrix.kept = weight, bias, panels  # the struct holds addresses alone

    def apply(x: Tensor) -> Tensor:
        count, fits = x.numel() // x.shape[-1], x.dtype == dtype and x.shape[-1] == matrix.inputs
        if weight is not None and not (fits and (panels is not None or count <= MOST_ROWS)):
            return F.linear(x, weight, bias)
        if not fits:
            raise ValueError(f"inputs are {x.dtype} [..., {x.shape[-1]}]; these weights take {dtype} "
                             f"[..., {matrix.inputs}]")
        rows, to = x.contiguous(), x.new_empty(*x.shape[:-1], matrix.out)
        run(ctypes.byref(matrix), c_void_p(rows.data_ptr()), c_void_p(to.data_ptr()), c_int64(count),
            c_int64(torch.get_num_threads()))
        return to

    return apply


def matrix_of(weight: Tensor | None, bias: Tensor | None = None, panels: Panels | None = None) -> Matrix:
    """The struct of weight [out, in] and bias [out], or of panels. The caller keeps the tensors alive."""
    if panels is None:
        return Matrix(start_of(weight), start_of(bias), out=weight.shape[0], inputs=weight.shape[1])
    addresses = map(start_of, (weight, bias, panels.numbers, panels.scale, panels.block_scale, panels.block_offset))
    short = panels.block_scale is not None and panels.block_scale.dtype == torch.float16
    return Matrix(*addresses, *panels.shape, panels.group, panels.kind, short, panels.rounded)


def start_of(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
