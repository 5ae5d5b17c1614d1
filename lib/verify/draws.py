"""Drawing tokens from long distributions: masses that are summed per block of tokens, and draws from a generator."""

import math
from functools import cached_property
from typing import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

BLOCK = 512  # tokens per block: a block's masses are summed before any of them is read alone
AHEAD = 64  # numbers drawn per call of the generator: one call costs as much as many numbers


class Masses:
    """max(p - times q, share p) for p, q float[V], or p alone without q; `instead` replaces the mass of some tokens.

    The masses are never stored as a whole; they are computed per block.
    """

    def __init__(
        self, p: Tensor, q: Tensor | None = None, times: float = 0, share: float = 0, instead: Mapping[int, float] = {}
    ):
        self.p, self.q, self.times, self.share, self.instead = p, q, times, share, instead

    @cached_property
    def sums(self) -> np.ndarray:
        """float64[V // BLOCK + 1]: the sum of each block; the last block holds the V % BLOCK remaining tokens."""
        whole = len(self.p) // BLOCK
        sums = np.zeros(whole + 1)
        if whole:
            sums[:whole] = self._all().unfold(0, BLOCK, BLOCK).sum(-1).numpy(force=True)
        for place in {whole, *(token // BLOCK for token in self.instead)}:
            sums[place] = self.block(place).sum()
        return sums

    @cached_property
    def mass(self) -> float:
        """The sum of all masses."""
        return float(self.sums.sum())

    def block(self, place: int) -> np.ndarray:
        """float64[BLOCK], or shorter for the last block: the masses of one block, as a copy."""
        first = place * BLOCK
        masses = _host_copy(self.p, first)
        if self.q is not None:
            masses = np.maximum(masses - self.times * _host_copy(self.q, first), self.share * masses)
        for token, mass in self.instead.items():
            if 0 <= token - first < len(masses):
                masses[token - first] = mass
        return masses

    def dense(self) -> Tensor:
        """float[V]: all masses, as a copy."""
        masses = self._all().clone()
        masses[list(self.instead)] = masses.new_tensor(list(self.instead.values()))
        return masses

    def tolist(self) -> list[float]:
        """All masses."""
        return self.dense().tolist()

    def _all(self) -> Tensor:
        if self.q is None:
            return self.p
        left = torch.sub(self.p, self.q, alpha=self.times)
        return left.clamp_min_(0) if self.share == 0 else torch.maximum(left, self.share * self.p)


def _host_copy(row: Tensor, first: int) -> np.ndarray:
    """float64[BLOCK], or shorter: a copy of the entries of row float[V] from `first` on."""
    piece = row.numpy()[first : first + BLOCK] if row.device.type == "cpu" else row[first : first + BLOCK].cpu().numpy()
    return piece.astype(np.float64)


class GeneratorDraws:
    """Draws from a torch.Generator; the generator may be None where nothing random is drawn."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator
        self._ahead: list[float] = []

    def uniform(self) -> float:
        """A float64 in [0, 1)."""
        if not self._ahead:
            self.prepare()
        return self._ahead.pop()

    def prepare(self) -> None:
        """Draws the next AHEAD numbers; numbers left over from before are dropped."""
        device = self.generator.device if self.generator is not None else "cpu"
        self._ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator, device=device).tolist()

    def categorical(
        self, probs: Tensor | Masses, *, without: Collection[int] = (), otherwise: Tensor | None = None
    ) -> int:
        """An index of probs float[V], as `Draws.categorical` defines it, by inversion of one uniform number.

        The block is drawn first, then a token of the block: block sums read the vocabulary once, where a running sum
        over all tokens takes as long as seven reads. ValueError if the mass is zero or not finite and `otherwise` is
        None.
        """
        masses = Masses(probs, instead=dict.fromkeys(without, 0.0)) if isinstance(probs, Tensor) else probs
        sums = masses.sums.copy()
        while True:
            ends = sums.cumsum()
            if otherwise is not None and ends[-1] == 0:
                return self.categorical(otherwise)
            place, share = _invert(ends, self.uniform())
            block = masses.block(place).cumsum()
            if block[-1] > 0:
                return place * BLOCK + _invert(block, share)[0]
            sums[place] = 0.0  # the block's sum was rounding error


def _invert(ends: np.ndarray, share: float) -> tuple[int, float]:
    """The entry in which a running sum `ends` passes `share` of its total, and the share of that entry passed."""
    whole = float(ends[-1])
    if not 0 < whole < math.inf:
        raise ValueError(
            f"probabilities sum to {whole}; a token can only be drawn where they are finite and not all zero"
        )
    goal = min(share * whole, math.nextafter(whole, 0))  # the product may round up to the total, where no token is
    index = int(ends.searchsorted(goal, side="right"))
    before = float(ends[index - 1]) if index else 0.0
    return index, (goal - before) / (float(ends[index]) - before)
