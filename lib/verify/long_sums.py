"""Sums over long distributions that lie in memory as float32, by blocks of tokens, in one reading (`long_sums.cpp`)."""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lib.kernels import build

BLOCK = 512  # tokens whose masses are summed before any is looked at singly
LONG = 1 << 14  # tokens from which on C++ is worth its compilation
SOURCE = Path(build.__file__).with_name("long_sums.cpp")


def fit(*rows: Tensor) -> bool:
    """Whether distributions float[V] are such, and this machine runs the C++; compiles it at its first use."""
    long = rows[0].shape[0] >= LONG and rows[0].device.type == "cpu"
    return long and all(row.dtype == torch.float32 and row.is_contiguous() for row in rows) and not _unavailable()


def rest_sums(p: Tensor, q: Tensor | None, times: float, share: float) -> np.ndarray:
    """float64[ceil(V / BLOCK)] of max(p - times q, share p), or of p without a q, which fit."""
    sums = np.empty(-(-len(p) // BLOCK))
    _library().rest_sums(p.data_ptr(), None if q is None else q.data_ptr(), len(p), times, share, sums.ctypes.data)
    return sums


def bit_sum(p: Tensor) -> float:
    """Of p, which fits, times its bits, read as an integer."""
    sums = np.empty(-(-len(p) // BLOCK))
    _library().bit_sums(p.data_ptr(), len(p), sums.ctypes.data)
    return float(sums.sum())


@cache  # which spares every sum the question what a path's hash is
def _unavailable() -> str | None:
    return build.unavailable(SOURCE)


@cache
def _library() -> ctypes.CDLL:
    library = build.library(SOURCE)
    library.rest_sums.argtypes = [c_void_p, c_void_p, c_int64, c_float, c_float, c_void_p]
    library.bit_sums.argtypes = [c_void_p, c_int64, c_void_p]
    library.rest_sums.restype = library.bit_sums.restype = None
    return library
