"""Where a continuation begins to repeat itself: small models do, and looped text flatters every drafter."""

from typing import Sequence

import numpy as np

SHORTEST_LOOP_REPEATS = 3
LONGEST_PERIOD = 40


def loop_start(tokens: Sequence[int]) -> int:
    """The transition from which a continuation repeats a cycle of at most 40 tokens to its end, at least three times
    over.

    The length of the continuation in transitions where it does not.
    """
    row = np.asarray(tokens)
    best = len(row)
    for period in range(1, min(LONGEST_PERIOD, len(row) // SHORTEST_LOOP_REPEATS) + 1):
        differs = np.flatnonzero(row[:-period] != row[period:])
        start = int(differs[-1]) + 1 if len(differs) else 0
        if len(row) - start >= max(SHORTEST_LOOP_REPEATS * period, 8):
            best = min(best, start + period)
    return min(best, len(row) - 1)
