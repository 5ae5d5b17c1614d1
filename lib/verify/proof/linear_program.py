"""Linear programs of a few thousand unknowns, solved by the simplex method, with a proof of the result."""

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-10
SLACK = 1e-10
MOST_REFINEMENTS = 10
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
    sides = np.hstack([rows, np.eye(count), limits[:, None]])  # with slacks; the last column holds the limits
    gains = np.concatenate([gain, np.zeros(count + 1)])
    basis = np.arange(size, size + count)
    for _ in range(MOST_REFINEMENTS):
        table = _table(sides, gains, basis)
        if not _climb(table, basis):
            break
    x = np.zeros(size + count)
    x[basis] = table[:count, -1]
    return _proven(gain, rows, limits, x[:size].clip(0), table[-1, size:-1].clip(0))


def _table(sides: np.ndarray, gains: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """The constraints solved for the unknowns of the basis, below them minus what is still to gain: free of old
    rounding."""
    solved = np.linalg.solve(sides[:, basis], sides)
    return np.vstack([solved, gains[basis] @ solved - gains])


def _climb(table: np.ndarray, basis: np.ndarray) -> bool:
    """Exchange unknowns until none gains; changes table and basis, and says whether it did."""
    stalled = steps = 0
    while (entering := _entering(table[-1, :-1], careful=stalled > PATIENCE)) is not None:
        before = table[-1, -1]
        leaving = _leaving(table[:-1, entering], table[:-1, -1], basis, careful=stalled > PATIENCE)
        _pivot(table, leaving, entering)
        basis[leaving] = entering
        stalled = stalled + 1 if table[-1, -1] <= before + TOLERANCE else 0
        steps += 1
    return steps > 0


def _entering(reduced: np.ndarray, careful: bool) -> int | None:
    """The unknown whose growth gains most; when careful, the first that gains (Bland), which never cycles."""
    gaining = np.flatnonzero(reduced < -TOLERANCE)
    if not len(gaining):
        return None
    return int(gaining[0] if careful else gaining[reduced[gaining].argmin()])


def _leaving(column: np.ndarray, limits: np.ndarray, basis: np.ndarray, careful: bool) -> int:
    """Of the constraints that are met first, within SLACK, the one of the largest pivot (Harris), or when careful the
    first."""
    bounded = np.flatnonzero(column > TOLERANCE)
    if not len(bounded):
        raise RuntimeError("the linear program has no finite maximum; a constraint is missing")
    left, pivots = limits[bounded].clip(0), column[bounded]
    near = bounded[left / pivots <= ((left + SLACK) / pivots).min()]
    return int(near[basis[near].argmin()] if careful else near[column[near].argmax()])


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
        raise RuntimeError(
            f"the linear program's proof does not hold: value {value}, bound {bound}, constraints broken by {over:.1e} "
            f"and {unpaid:.1e}; make the problem smaller"
        )
    return Solution(value, bound, x, prices)
