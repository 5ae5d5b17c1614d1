"""Drawing numbers and tokens from a generator."""

import math

import numpy as np
import torch
from torch import Tensor

BLOCK = 512  # tokens per block: a block's probabilities are summed before any of them is read alone
AHEAD = 64  # numbers drawn per call of the generator: one call costs as much as many numbers


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

    def categorical(self, probs: Tensor, *, otherwise: Tensor | None = None) -> int:
        """An index of probs float[V], as `Draws.categorical` defines it, by inversion of one uniform number.

        The block is drawn first, then a token of the block: block sums read the vocabulary once, where a running sum
        over all tokens takes as long as seven reads. ValueError if the mass is zero or not finite and `otherwise` is
        None.
        """
        row = probs.numpy(force=True)
        ends = np.add.reduceat(row, np.arange(0, len(row), BLOCK)).cumsum(dtype=np.float64)
        if otherwise is not None and ends[-1] == 0:
            return self.categorical(otherwise)
        place, share = _invert(ends, self.uniform())
        block = row[place * BLOCK : (place + 1) * BLOCK]
        return place * BLOCK + _invert(block.cumsum(dtype=np.float64), share)[0]


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
