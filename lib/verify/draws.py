"""Draws from a generator."""

import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

BLOCK = 512  # tokens whose probabilities are summed before any is looked at singly
FEW = 32  # tokens that plain Python adds up sooner than a tensor
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

    def categorical(self, probs: Tensor) -> int:
        """By inversion, with one uniform number: first among blocks of tokens, then in one block.

        Sums of blocks cost one read of probs float[V]; a running sum over every token would cost seven.
        """
        share = self.uniform()
        if len(probs) < 2 * BLOCK:
            return _invert(probs, share)[0]
        block, share = _invert(_block_sums(probs), share)
        return block * BLOCK + _invert(probs[block * BLOCK : (block + 1) * BLOCK], share)[0]


def _block_sums(probs: Tensor) -> Tensor:
    """The sums of BLOCK tokens each of probs float[V], the last of what is left; by numpy on a CPU, which starts
    sooner.
    """
    whole = len(probs) // BLOCK * BLOCK
    blocks, rest = probs[:whole].view(-1, BLOCK), probs[whole:]
    if probs.device.type != "cpu" or probs.dtype not in (torch.float32, torch.float64):
        return torch.cat([blocks.sum(-1), rest.sum(0, keepdim=True)])
    sums = np.add.reduce(blocks.numpy(force=True), axis=1)
    return torch.from_numpy(np.append(sums, np.add.reduce(rest.numpy(force=True))))


def _invert(masses: Tensor, share: float) -> tuple[int, float]:
    """The entry in which the running sum of masses passes `share` of it all, and how far into that entry it is, as a
    share."""
    if len(masses) <= FEW:
        ends = list(accumulate(masses.tolist()))
    else:
        ends = np.cumsum(masses.numpy(force=True), dtype=np.float64)
    whole = float(ends[-1])
    if not 0 < whole < math.inf:
        raise ValueError(
            f"probabilities sum to {whole}; a token can only be drawn where they are finite and not all zero"
        )
    goal = min(share * whole, math.nextafter(whole, 0))  # the product may round up to the whole, where no token is
    index = bisect_right(ends, goal)
    before = float(ends[index - 1]) if index else 0.0
    return index, (goal - before) / (float(ends[index]) - before)
