"""Draws from a generator."""

import numpy as np
import torch
from torch import Tensor

BLOCK = 512  # tokens whose probabilities are summed before any is looked at singly


class GeneratorDraws:
    """Draws from a torch.Generator; None is allowed where nothing random is asked for."""

    def __init__(self, generator: torch.Generator | None):
        self.generator = generator

    def uniform(self) -> float:
        """A float64 in [0, 1)."""
        device = self.generator.device if self.generator is not None else "cpu"
        return torch.rand((), dtype=torch.float64, generator=self.generator, device=device).item()

    def categorical(self, probs: Tensor) -> int:
        """By inversion, with one uniform number: first among blocks of tokens, then in one block.

        Sums of blocks cost one read of probs float[V]; a running sum over every token would cost seven.
        """
        share = self.uniform()
        if len(probs) < 2 * BLOCK:
            return _invert(probs, share)[0]
        whole = len(probs) // BLOCK * BLOCK
        sums = torch.cat([probs[:whole].view(-1, BLOCK).sum(-1), probs[whole:].sum(0, keepdim=True)])
        block, share = _invert(sums, share)
        return block * BLOCK + _invert(probs[block * BLOCK : (block + 1) * BLOCK], share)[0]


def _invert(masses: Tensor, share: float) -> tuple[int, float]:
    """The entry in which the running sum of masses passes `share` of it all, and how far into that entry it is, as a
    share."""
    ends = np.cumsum(masses.detach().cpu().numpy(), dtype=np.float64)
    if not 0 < ends[-1] < np.inf:
        raise ValueError(
            f"probabilities sum to {ends[-1]}; a token can only be drawn where they are finite and not all zero"
        )
    goal = min(share * ends[-1], np.nextafter(ends[-1], 0))  # the product may round up to the whole, where no token is
    index = int(np.searchsorted(ends, goal, side="right"))
    before = ends[index - 1] if index else 0.0
    return index, (goal - before) / (ends[index] - before)
