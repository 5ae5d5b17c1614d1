"""Masses over a long vocabulary that are written down nowhere: known by sums over blocks of tokens, block by block."""

from functools import cached_property
from typing import Mapping

import numpy as np
import torch
from torch import Tensor

from lib.verify import long_sums
from lib.verify.long_sums import BLOCK


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
        sums, mended = np.zeros(whole + 1), {token // BLOCK for token in self.instead}
        if long_sums.fit(*(row for row in (self.p, self.q) if row is not None)):
            found = long_sums.rest_sums(self.p, self.q, self.times, self.share)
            sums[: len(found)] = found
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
