"""The peak of the processor's vector and matrix units, on numbers that are already in their registers."""

import ctypes
from pathlib import Path

import torch

from lib.kernels import build
from lib.lab import processor

SOURCES = tuple(map(Path(__file__).with_name, ("units.cpp", "lanes.h", "tiles.h")))
ENTRIES = {torch.float32: "run_float32", torch.bfloat16: "run_bfloat16"}


def unavailable(dtype: torch.dtype) -> str | None:
    """Why it cannot be measured here; None if it can. Compiles the probe at its first use."""
    if dtype not in ENTRIES:
        return f"it takes float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if dtype == torch.bfloat16 and "avx512_bf16" not in processor.flags():
        return "the processor has no avx512_bf16"
    return build.unavailable(*SOURCES)


def run(dtype: torch.dtype, count: int) -> int:
    """Computes `count` rounds on all threads; returns the number of operations. ValueError where it is unavailable."""
    if reason := unavailable(dtype):
        raise ValueError(f"the units' rate for {dtype} cannot be measured: {reason}")
    entry = getattr(build.library(*SOURCES), ENTRIES[dtype])
    entry.restype = ctypes.c_int64
    numbers = torch.randn(2048).bfloat16()  # units are slower on random numbers, as in real work, than on zeros
    return entry(ctypes.c_int64(count), torch.get_num_threads(), ctypes.c_void_p(numbers.data_ptr()))
