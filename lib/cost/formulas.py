"""Speed by published formulas, beside replay and measured costs: Leviathan's walltime factor, a blog's table."""

import numpy as np

from lib.drafters.adaptive import tokens_of_chains


def leviathan_tokens(alpha: float, length: int) -> float:
    """Expected tokens per round of a chain: (1 - alpha^(length + 1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1).

    alpha: the chance that a token is accepted, taken to be the same everywhere and independent of the tokens before.
    """
    return tokens_of_chains(alpha, length)[-1]


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain: its expected tokens over length * cost + 1 (Leviathan et al. 2023, theorem 3.8).

    cost: seconds of a drafter's step over a target's step. Checking any number of tokens is taken to cost one step.
    """
    return leviathan_tokens(alpha, length) / (length * cost + 1)


LEVIATHAN = "Leviathan et al."
# The source blog's table: chain length, acceptance, speedup, share of target calls saved.
CLAIMS = {"length": [3, 5, 8, 12], "acceptance": [0.85, 0.78, 0.70, 0.62], "speedup": [1.8, 2.1, 2.3, 2.1],
          "saved": [0.45, 0.58, 0.67, 0.72]}


def blog_speedup(length: float) -> float:
    """The speedup that the blog claims for a draft length, linear between its rows; NaN outside them."""
    return float(np.interp(length, CLAIMS["length"], CLAIMS["speedup"], left=np.nan, right=np.nan))
