"""What the processor's vector and matrix units can do in a second, on numbers that are in their registers already."""

import ctypes
from pathlib import Path

import torch

from lib.kernels import build
from lib.lab import processor

SOURCES = tuple(map(Path(__file__).with_name, ("units.cpp", "lanes.h", "tiles.h")))
ENTRIES = {torch.float32: "run_float32", torch.bfloat16: "run_bfloat16"}


def unavailable(dtype: torch.dtype) -> str | None:
    """Why this cannot be told here; None if it can. Compiles what is needed where that has not been done."""
    if dtype not in ENTRIES:
        return f"it knows float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if dtype == torch.bfloat16 and "avx512_bf16" not in processor.flags():
        return "the processor has no avx512_bf16"
    return build.unavailable(*SOURCES)


def run(dtype: torch.dtype, count: int) -> int:
    """Computes for `count` rounds on all threads; the number of operations. ValueError where that cannot be."""
    if reason := unavailable(dtype):
        raise ValueError(f"the units' rate for {dtype} cannot be told: {reason}")
    entry = getattr(build.library(*SOURCES), ENTRIES[dtype])
    entry.restype = ctypes.c_int64
    numbers = torch.randn(2048).bfloat16()  # units are slower on random numbers than on zeros, as work will be
    return entry(ctypes.c_int64(count), torch.get_num_threads(), ctypes.c_void_p(numbers.data_ptr()))
