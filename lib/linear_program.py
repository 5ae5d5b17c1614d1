"""Linear programs of a few thousand unknowns, solved by the simplex method, with a proof of the result."""

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-10
PATIENCE = 50  # steps without gain after which the rule that cannot cycle takes over


@dataclass(frozen=True)
class Solution:
    """The largest value of a linear program, where it is taken, and a proof: `prices` are the dual solution.

    Whatever the solver did, `bound` >= the true maximum >= `value`; it raises where the two differ.
    """

    value: float
    bound: float
    x: np.ndarray
    prices: np.ndarray


def maximise(gain: np.ndarray, rows: np.ndarray, limits: np.ndarray) -> Solution:
    """The x >= 0 with rows @ x <= limits that has the largest gain @ x.

    gain float64[n], rows float64[r, n], limits float64[r], none below 0 (so that x = 0 is allowed).
    RuntimeError where the maximum is not finite, or rounding has spoilt the proof.
    """
    count, size = rows.shape
    # One tableau: constraints with their slacks, and below them minus the gain; the last column holds the limits.
    table = np.zeros((count + 1, size + count + 1))
    table[:count, :size], table[:count, size:-1], table[:count, -1] = rows, np.eye(count), limits
    table[-1, :size] = -gain
    basis = np.arange(size, size + count)
    stalled = 0
    while True:
        entering = _entering(table[-1, :-1], careful=stalled > PATIENCE)
        if entering is None:
            break
        before = table[-1, -1]
        leaving = _leaving(table[:count, entering], table[:count, -1], basis)
        _pivot(table, leaving, entering)
        basis[leaving] = entering
        stalled = stalled + 1 if table[-1, -1] <= before + TOLERANCE else 0
    x = np.zeros(size + count)
    x[basis] = table[:count, -1]
    return _proven(gain, rows, limits, x[:size].clip(0), table[-1, size:-1].clip(0))


def _entering(reduced: np.ndarray, careful: bool) -> int | None:
    """The unknown whose growth gains most; when careful, the first that gains (Bland), which never cycles."""
    gaining = np.flatnonzero(reduced < -TOLERANCE)
    if not len(gaining):
        return None
    return int(gaining[0] if careful else gaining[reduced[gaining].argmin()])


def _leaving(column: np.ndarray, limits: np.ndarray, basis: np.ndarray) -> int:
    """The constraint that is met first; among equals the one whose unknown stands first."""
    bounded = np.flatnonzero(column > TOLERANCE)
    if not len(bounded):
        raise RuntimeError("the linear program has no finite maximum; a constraint is missing")
    ratios = limits[bounded] / column[bounded]
    ties = bounded[ratios <= ratios.min() + 1e-14]
    return int(ties[basis[ties].argmin()])


def _pivot(table: np.ndarray, row: int, column: int) -> None:
    table[row] /= table[row, column]
    others = np.flatnonzero(table[:, column])
    others = others[others != row]
    table[others] -= np.outer(table[others, column], table[row])


def _proven(gain, rows, limits, x, prices) -> Solution:
    """Weak duality: any prices >= 0 with prices @ rows >= gain give prices @ limits >= the maximum."""
    unpaid = (gain - prices @ rows).max(initial=0)
    over = (rows @ x - limits).max(initial=0)
    value, bound = float(gain @ x), float(prices @ limits)
    if max(unpaid, over) > 1e-8 or abs(bound - value) > 1e-7 * (1 + abs(bound)):
        raise RuntimeError(f"the linear program's proof does not hold: value {value}, bound {bound}, constraints broken by {over:.1e} "
                           f"and {unpaid:.1e}; make the problem smaller")
    return Solution(value, bound, x, prices)
