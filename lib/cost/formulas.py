"""Speed by published formulas, beside replay and measured costs: Leviathan's walltime factor, a blog's table."""

from dataclasses import dataclass

import numpy as np
import pandas as pd


def leviathan_tokens(alpha: float, length: int) -> float:
    """Expected tokens per round of a chain: (1 - alpha^(length + 1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1).

    alpha: the chance that a token is accepted, taken to be the same everywhere and independent of the tokens before.
    """
    return float(length + 1) if alpha == 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain: its expected tokens over length * cost + 1 (Leviathan et al. 2023, theorem 3.8).

    cost: seconds of a drafter's step over a target's step. Checking any number of tokens is taken to cost one step.
    """
    return leviathan_tokens(alpha, length) / (length * cost + 1)


@dataclass(frozen=True)
class Claim:
    """A row of the source blog's table: chain length, acceptance, speedup, share of target calls saved."""

    length: int
    acceptance: float
    speedup: float
    saved: float


CLAIMS = (Claim(3, 0.85, 1.8, 0.45), Claim(5, 0.78, 2.1, 0.58), Claim(8, 0.70, 2.3, 0.67), Claim(12, 0.62, 2.1, 0.72))


def blog_claims() -> pd.DataFrame:
    """The source blog's table, with the tokens per target call that follow from its columns; it gives no formula.

    tokens_by_calls: 1 / (1 - saved). tokens_by_share: 1 + acceptance * length, if acceptance is accepted over drafted.
    tokens_by_alpha: Leviathan's, if acceptance is a chance per token. draft_cost: the c at which Leviathan's walltime
    factor, with tokens_by_calls, gives the claimed speedup; below zero no drafter is cheap enough.
    """
    rows = [dict(vars(claim), tokens_by_calls=1 / (1 - claim.saved),
                 tokens_by_share=1 + claim.acceptance * claim.length,
                 tokens_by_alpha=leviathan_tokens(claim.acceptance, claim.length),
                 draft_cost=(1 / (1 - claim.saved) / claim.speedup - 1) / claim.length) for claim in CLAIMS]
    return pd.DataFrame(rows)


def blog_speedup(length: float) -> float:
    """The speedup that the blog claims for a draft length, linear between its rows; NaN outside them."""
    lengths = [claim.length for claim in CLAIMS]
    inside = lengths[0] <= length <= lengths[-1]
    return float(np.interp(length, lengths, [claim.speedup for claim in CLAIMS])) if inside else float("nan")
