"""What papers and the source blog say of speed: beside replay and measured costs, not in their place."""

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pandas as pd


def leviathan_tokens(alpha: float, length: int) -> float:
    """Expected tokens a round of a chain: (1 - alpha^(length + 1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1).

    alpha: chance that a token is accepted, taken as the same everywhere and independent of what came before.
    """
    return float(length + 1) if alpha == 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain: its expected tokens over length * cost + 1 (Leviathan et al. 2023, theorem 3.8).

    cost: a drafter's step over a target's step. A check of any length is taken to cost as much as one token.
    """
    return leviathan_tokens(alpha, length) / (length * cost + 1)


def smart_budget(tokens: Sequence[float], seconds: Sequence[float]) -> int:
    """The budget at which SMART's marginal rule stops: nodes are added while what the next one gains over what it
    costs exceeds the speed so far (arXiv 2604.09731).

    tokens, seconds: float[N + 1], of a round with n = 0 .. N nodes in the order of adding. A node that costs nothing is
    always taken. Where gains fall and costs rise evenly, this is the best budget; at a step in the costs, or before a
    level that pays only when it is filled, the rule stops short.
    """
    for n in range(len(tokens) - 1):
        gain, price = tokens[n + 1] - tokens[n], seconds[n + 1] - seconds[n]
        if gain * seconds[n] <= tokens[n] * price:
            return n
    return len(tokens) - 1


@dataclass(frozen=True)
class Claim:
    """A row of the source blog's table: chain length, acceptance, speedup, share of target calls saved."""

    length: int
    acceptance: float
    speedup: float
    saved: float


BLOG = (Claim(3, 0.85, 1.8, 0.45), Claim(5, 0.78, 2.1, 0.58), Claim(8, 0.70, 2.3, 0.67), Claim(12, 0.62, 2.1, 0.72))


def blog_claims() -> pd.DataFrame:
    """The source blog's table, and how many tokens a target call its own columns mean. It gives no formula.

    tokens_by_calls: 1 / (1 - saved). tokens_by_share: 1 + acceptance * length, if acceptance is accepted over drafted.
    tokens_by_alpha: Leviathan's, if it is a chance a token. draft_cost: the c at which Leviathan's walltime factor,
    with the tokens that the saved calls mean, gives the claimed speedup; below zero no drafter can be so cheap.
    """
    rows = [dict(vars(claim), tokens_by_calls=1 / (1 - claim.saved),
                 tokens_by_share=1 + claim.acceptance * claim.length,
                 tokens_by_alpha=leviathan_tokens(claim.acceptance, claim.length),
                 draft_cost=(1 / (1 - claim.saved) / claim.speedup - 1) / claim.length) for claim in BLOG]
    return pd.DataFrame(rows)


def blog_speedup(length: float) -> float:
    """The speedup that the blog claims for a draft length, linear between its rows; NaN outside of them."""
    lengths = [claim.length for claim in BLOG]
    inside = lengths[0] <= length <= lengths[-1]
    return float(np.interp(length, lengths, [claim.speedup for claim in BLOG])) if inside else float("nan")
