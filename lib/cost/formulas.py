"""Speed by published formulas, beside replay and measured costs: Leviathan's walltime factor, a blog's table."""

from itertools import product

import numpy as np
import pandas as pd

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


ALPHAS, COSTS, LONGEST = (0.6, 0.7, 0.8, 0.9), (0.05, 0.1, 0.2), 19  # of the table of best lengths
LEVIATHAN = "Leviathan et al."
FORMULAS = {LEVIATHAN: leviathan_speedup}  # by the name of their source


def best_lengths() -> pd.DataFrame:
    """The table "formula_lengths": for each formula, chance of acceptance and cost of a drafter's step the length of a
    chain, of 1 to LONGEST, that it calls the best, and the speedup that it gives it.
    """
    rows = []
    for (name, formula), alpha, cost in product(FORMULAS.items(), ALPHAS, COSTS):
        length = max(range(1, LONGEST + 1), key=lambda own: formula(alpha, own, cost))
        rows.append(dict(by=name, alpha=alpha, cost=cost, length=length, speedup=formula(alpha, length, cost)))
    return pd.DataFrame(rows)


# The source blog's table: chain length, acceptance, speedup, share of target calls saved.
CLAIMS = {"length": [3, 5, 8, 12], "acceptance": [0.85, 0.78, 0.70, 0.62], "speedup": [1.8, 2.1, 2.3, 2.1],
          "saved": [0.45, 0.58, 0.67, 0.72]}


def blog_claims() -> pd.DataFrame:
    """The source blog's table by draft length, with the tokens per target call that follow from its columns.

    tokens_by_calls: 1 / (1 - saved). tokens_by_share: 1 + acceptance * length, if acceptance is accepted over drafted.
    tokens_by_alpha: Leviathan's, if acceptance is a chance per token. draft_cost: the c at which Leviathan's walltime
    factor, with tokens_by_calls, gives the claimed speedup; below zero no drafter is cheap enough.
    """
    claims = pd.DataFrame(CLAIMS)
    claims["tokens_by_calls"] = 1 / (1 - claims["saved"])
    claims["tokens_by_share"] = 1 + claims["acceptance"] * claims["length"]
    claims["tokens_by_alpha"] = list(map(leviathan_tokens, claims["acceptance"], claims["length"]))
    claims["draft_cost"] = (claims["tokens_by_calls"] / claims["speedup"] - 1) / claims["length"]
    return claims


def blog_speedup(length: float) -> float:
    """The speedup that the blog claims for a draft length, linear between its rows; NaN outside them."""
    return float(np.interp(length, CLAIMS["length"], CLAIMS["speedup"], left=np.nan, right=np.nan))
