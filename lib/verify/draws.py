"""Draws from a generator."""

import math
from typing import Collection

import numpy as np
import torch
from torch import Tensor

from lib.verify.masses import BLOCK, Masses

AHEAD = 64  # numbers drawn at once: each call of the generator costs as much as many numbers


class GeneratorDraws:
    """Draws from a torch.Generator; None is allowed where nothing random is asked for."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator
        self._ahead: list[float] = []

    def uniform(self) -> float:
        """A float64 in [0, 1)."""
        if not self._ahead:
            self.prepare()
        return self._ahead.pop()

    def prepare(self) -> None:
        """Has numbers at hand; those that are left over are dropped."""
        device = self.generator.device if self.generator is not None else "cpu"
        self._ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator, device=device).tolist()

    def categorical(
        self, probs: Tensor | Masses, *, without: Collection[int] = (), otherwise: Tensor | None = None
    ) -> int:
        """An index of probs float[V], as `Draws` has it: by inversion, with one uniform number, first among blocks of
        tokens, then in one block.

        Sums of blocks cost one read of the vocabulary; a running sum over every token would cost seven. ValueError
        where there is no mass, or none that is finite, and no `otherwise`.
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
            sums[place] = 0.0  # its sum was rounding


def _invert(ends: np.ndarray, share: float) -> tuple[int, float]:
    """The entry in which a running sum, whose values behind each entry are `ends`, passes `share` of it all, and how
    far into that entry it is, as a share."""
    whole = float(ends[-1])
    if not 0 < whole < math.inf:
        raise ValueError(
            f"probabilities sum to {whole}; a token can only be drawn where they are finite and not all zero"
        )
    goal = min(share * whole, math.nextafter(whole, 0))  # the product may round up to the whole, where no token is
    index = int(ends.searchsorted(goal, side="right"))
    before = float(ends[index - 1]) if index else 0.0
    return index, (goal - before) / (float(ends[index]) - before)
