"""Upper bounds for every lossless verification rule: optimal transport between drafts and the target's text."""

import math
from collections import defaultdict

import numpy as np
from scipy.optimize import linprog

from lib.trees.tree import Tree
from lib.verify.proof.enumeration import Language, Path, drafts, tokens_of

NEGLIGIBLE = 1e-10  # chances that are lost in the rounding of the linear programme
CLOSE = 1e-7  # largest difference between the two values that bracket the maximum of a linear programme


def best_accepted_length(
    target: Language, drafter: Language, shape: Tree, proposal: str, *, most_entries: int = 40_000_000
) -> float:
    """The largest expected accepted length of any lossless rule: the joint transport of whole trees to emitted paths.

    A rule sends every draft D to one of its nodes, where it stops: mass s(D, y) >= 0, sum over y in D of s(D, y) =
    P(D). With a(y) the mass that stops at y or below it, the tokens after an accepted y must have the target's law:
    a(y t) <= p(t | y) a(y) for every token t; bonus tokens give the rest of p(t | y) a(y). The linear programme
    maximises the sum of depth(y) s(D, y). Drafts and paths with a chance below NEGLIGIBLE are left out and counted as
    if all of them were accepted. ValueError if the programme has more than `most_entries` entries.
    """
    masses, left_out = _supplies(target, drafter, shape, proposal)
    stops = [(drafted, path) for drafted in masses for path in sorted(drafted)]
    nodes = sorted({path for _, path in stops})
    count = len(masses) + len(nodes)
    entries = (count + 1) * (len(stops) + count + 1)
    if entries > most_entries:
        raise ValueError(f"the transport for {shape} needs {entries} entries, more than {most_entries}; "
                         "take a smaller vocabulary or tree")
    rows, limits = np.zeros((count, len(stops))), np.zeros(count)
    limits[: len(masses)] = list(masses.values())
    supply = {drafted: row for row, drafted in enumerate(masses)}
    demand = {path: len(masses) + row for row, path in enumerate(nodes)}
    for path in nodes:
        if len(path) == 1:
            limits[demand[path]] = target(())[path[0]]
    for column, (drafted, path) in enumerate(stops):
        rows[supply[drafted], column] = 1
        for length in range(1, len(path) + 1):
            above = path[:length]
            rows[demand[above], column] += 1
            for token, chance in enumerate(target(above).tolist()):
                if (*above, token) in demand:
                    rows[demand[*above, token], column] -= chance
    depths = np.array([float(len(path)) for _, path in stops])
    return maximum(depths, rows, limits, sum(masses.values())) + left_out * shape.max_depth


def maximum(gain: np.ndarray, rows: np.ndarray, limits: np.ndarray, most: float) -> float:
    """An upper bound, tight to CLOSE, of gain @ x over x >= 0 with rows @ x <= limits, where these imply sum x <= most.

    gain float64[n], rows float64[r, n], limits float64[r]. The bound is that of the dual: any prices >= 0 have
    gain @ x <= prices @ limits + most * max(gain - prices @ rows), however they were found. RuntimeError if the solver
    fails, or if its own value is further than CLOSE below the bound.
    """
    if not len(gain):
        return 0.0
    tight = {"primal_feasibility_tolerance": NEGLIGIBLE, "dual_feasibility_tolerance": NEGLIGIBLE}
    solved = linprog(-gain, A_ub=rows, b_ub=limits, method="highs", options=tight)
    if not solved.success:
        raise RuntimeError(f"the linear programme was not solved: {solved.message}; make the problem smaller")
    prices = (-solved.ineqlin.marginals).clip(0)
    bound = float(prices @ limits + most * (gain - prices @ rows).max(initial=0))
    if abs(bound + solved.fun) > CLOSE * (1 + abs(bound)):
        raise RuntimeError(
            f"the linear programme has the value {-solved.fun}, but its dual gives {bound}; make the problem smaller"
        )
    return bound


def _supplies(
    target: Language, drafter: Language, shape: Tree, proposal: str
) -> tuple[dict[frozenset[Path], float], float]:
    """The chance of each set of drafted paths that the target may emit, and the chance of all that is left out."""
    masses: dict[frozenset[Path], float] = defaultdict(float)
    rare: dict[Path, float] = {}
    left_out = 0.0
    for chance, draft in drafts(drafter, shape, proposal):
        if chance < NEGLIGIBLE:
            left_out += chance
            continue
        likely = {path: math.prod(float(target(path[:length])[token]) for length, token in enumerate(path))
                  for path in tokens_of(draft)[1:]}
        rare |= {path: value for path, value in likely.items() if value < NEGLIGIBLE}
        masses[frozenset(likely.keys() - rare.keys())] += chance
    return masses, left_out + sum(rare.values())
