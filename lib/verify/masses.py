"""Masses over a long vocabulary that are written down nowhere: known by sums over blocks of tokens, block by block."""

import ctypes
from functools import cache, cached_property
from pathlib import Path
from typing import Mapping

import numpy as np
import torch
from torch import Tensor

from lib.native import build

BLOCK = 512  # tokens whose masses are summed before any is looked at singly
LONG = 1 << 14  # tokens from which on C++ is worth its compilation
SOURCE = Path(build.__file__).with_name("rest_sums.cpp")


class Masses:
    """max(p - times q, share p) of p, q float[V], or p without a q; but at some tokens what `instead` says."""

    def __init__(
        self, p: Tensor, q: Tensor | None = None, times: float = 0, share: float = 0, instead: Mapping[int, float] = {}
    ):
        self.p, self.q, self.times, self.share, self.instead = p, q, times, share, instead

    @cached_property
    def sums(self) -> np.ndarray:
        """float64[V // BLOCK + 1]: the sum of each block, the last of what is left."""
        whole = len(self.p) // BLOCK
        sums, mended = np.empty(whole + 1), {token // BLOCK for token in self.instead}
        if self.q is not None and _in_one_reading(self.p, self.q):
            sums[whole] = 0.0
            places = self.p.data_ptr(), self.q.data_ptr()
            _library().rest_sums(*places, len(self.p), self.times, self.share, sums.ctypes.data)
        else:
            if whole:
                sums[:whole] = self._between(0, len(self.p)).unfold(0, BLOCK, BLOCK).sum(-1).numpy(force=True)
            mended.add(whole)
        for place in mended:
            sums[place] = self.block(place).sum()
        return sums

    @cached_property
    def mass(self) -> float:
        """The sum of them all."""
        return float(self.sums.sum())

    def block(self, place: int) -> np.ndarray:
        """float64[BLOCK], or what is left: one block, as a copy."""
        first = place * BLOCK
        masses = _at_host(self.p, first)
        if self.q is not None:
            masses = np.maximum(masses - self.times * _at_host(self.q, first), self.share * masses)
        for token, mass in self.instead.items():
            if 0 <= token - first < len(masses):
                masses[token - first] = mass
        return masses

    def written(self) -> Tensor:
        """float[V]: all of them, as a copy."""
        masses = self._between(0, len(self.p)).clone()
        masses[list(self.instead)] = masses.new_tensor(list(self.instead.values()))
        return masses

    def tolist(self) -> list[float]:
        """All of them."""
        return self.written().tolist()

    def _between(self, first: int, end: int) -> Tensor:
        p = self.p[first:end]
        if self.q is None:
            return p
        left = torch.sub(p, self.q[first:end], alpha=self.times)
        return left.clamp_min_(0) if self.share == 0 else torch.maximum(left, self.share * p)


def _at_host(row: Tensor, first: int) -> np.ndarray:
    """float64[BLOCK], or what is left: a copy of the entries of row float[V] from the first one on."""
    piece = row.numpy()[first : first + BLOCK] if row.device.type == "cpu" else row[first : first + BLOCK].cpu().numpy()
    return piece.astype(np.float64)


def _in_one_reading(p: Tensor, q: Tensor) -> bool:
    if len(p) < LONG or p.device.type != "cpu" or not p.dtype == q.dtype == torch.float32:
        return False
    return p.is_contiguous() and q.is_contiguous() and build.unavailable(SOURCE) is None


@cache
def _library() -> ctypes.CDLL:
    library = build.library(SOURCE)
    library.rest_sums.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] + [ctypes.c_float] * 2 + [ctypes.c_void_p]
    library.rest_sums.restype = None
    return library
