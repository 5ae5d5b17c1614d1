"""What the steps of a backend cost: plain steps, steps that check forced drafts, and what drafting adds.

The table "costs" has a row per backend, batch size, method and shape: PLAIN, FORCED for checks by their nodes per row,
and for each drafter whose drafting takes time a few shapes. `Costs` makes curves of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression, nnls

from lib.engines.driver import Running
from lib.engines.methods import FORCED, PLAIN, PLAIN_WAY, Way, forced
from lib.study.bench import CHOOSING, Bench
from lib.study.candidates import timed_ways
from lib.trees import named
from lib.trees.growth import Growth
from lib.trees.tree import Tree

NODES = (1, 2, 4, 8, 16, 32, 64)  # of forced drafts at first, besides the most
HALVINGS = 4  # further numbers of nodes, each in the middle of the steepest rise
FORCED_TOKENS, LEAST_TOKENS = 24, 6  # of a timed call, and where checks are wide
MOST_ROWS = 2048  # that a timed call checks, beyond LEAST_TOKENS rounds
REPEATS = 4  # calls of each point, after one to warm up; twice as many where the machine is not steady
FEWEST, SECONDS = 2, 30  # calls of each point are enough where prefills are so slow that all points took this long
STEADY = 1.2  # of the slowest plain call to the fastest of a point's
LEAST_SECONDS = 1e-9  # of a draft: errors are relative, and a clock may give 0
DRAFTING = f"method not in ['{PLAIN}', '{FORCED}']"  # the rows of what drafting adds to a step
Curve = Callable[[np.ndarray | float], np.ndarray]  # seconds over an amount of work


def measure(bench: Bench, ways: Sequence[Way], most_nodes: int) -> pd.DataFrame:
    """The backend's rows of the table "costs" with missing ones timed: plain steps and checks of up to `most_nodes`
    nodes, then checks in the middle of the steepest rises, where a curve has its steps, then what drafting by these
    ways adds to a step. Where nothing is raced, every second number of nodes, a repeat less and short calls do.
    """
    table, check, is_raced = bench.store.open("costs"), forced(most_nodes), any(bench.raced.values())
    nodes, repeats = sorted({*(n for n in NODES if n < most_nodes), most_nodes}), REPEATS
    if not is_raced:
        nodes, repeats = nodes[::-2], REPEATS - 1
    nodes += [0] * bench.backend.idles

    # plain steps and checks
    points = [(batch, PLAIN, 0) for batch in bench.batches_of(PLAIN_WAY)]
    points += [(batch, FORCED, n) for batch in bench.batches_of(check) for n in nodes]
    time_checks(bench, points, check, repeats)
    for halvings in range(1, 1 + HALVINGS * is_raced):
        checks = bench.rows_of("costs").query("method == @FORCED")
        points = [(batch, FORCED, middle) for batch, rows in checks.groupby("batch")
                  if len(rows) < len(nodes) + halvings and (middle := _steepest(rows))]
        time_checks(bench, points, check, repeats)

    # drafting
    costs = Costs.of(bench.rows_of("costs"))
    for way in timed_ways(ways):
        missing = [batch for batch in bench.batches_of(way)
                   if (bench.backend.name, batch, way.method, way.shape_name) not in table.keys()]
        if missing:
            bench.say(f"the cost of drafting by {way.name}")
        with bench.running(*[way] if missing else []) as running:
            for batch in missing:
                seconds = [_drafting(bench, running[way.name], costs, way, batch, turn) for turn in range(repeats + 1)]
                table.extend([_row(bench, batch, way.method, way.shape_name, way.nodes, seconds[1:])])
    return bench.rows_of("costs")


def time_checks(bench: Bench, points: Sequence[tuple[int, str, int]], check: Way, repeats: int) -> None:
    """Times the points (batch, method, nodes) that are missing, in shuffled turns."""
    table = bench.store.open("costs")
    points = [point for point in points if (bench.backend.name, *point[:2], f"nodes:{point[2]}") not in table.keys()]
    times, start = {point: [] for point in points}, time.monotonic()
    if points:
        bench.say(f"{len(points)} points of the cost of a check")
    with bench.running(*[PLAIN_WAY, check] if points else []) as running:
        for turn in range(2 * repeats + 1):
            plain = [seconds[1:] for (_, method, _), seconds in times.items() if method == PLAIN]
            if turn > FEWEST and time.monotonic() - start > SECONDS:
                break
            if turn > repeats and all(max(seconds) <= STEADY * min(seconds) for seconds in plain):
                break
            for index in bench.generator("costs", turn).permutation(len(points)):
                batch, method, drafted = points[index]
                num_drafted = drafted if method == FORCED else None
                decoded = running[method].decode(*_call(bench, batch, turn, drafted), drafted=num_drafted)
                steps = decoded.steps if decoded.steps > 0 else max(map(len, decoded.tokens)) - 1
                seconds = decoded.seconds - decoded.prefill - np.nan_to_num(decoded.drafting)
                times[points[index]].append(seconds / max(1, steps))
    table.extend(_row(bench, batch, method, f"nodes:{drafted}", drafted, seconds[1:])
                 for (batch, method, drafted), seconds in times.items())


def _steepest(checks: pd.DataFrame) -> int | None:
    """The number of nodes in the middle of those between which a check's time rises most; None where they adjoin."""
    nodes = np.sort(checks["nodes"].to_numpy())
    rises = np.diff(curve_through(checks["nodes"], checks["ms"])(nodes)) * (np.diff(nodes) > 1)
    index = int(np.argmax(rises)) if len(rises) else 0
    return int(nodes[index : index + 2].sum() // 2) if len(rises) and rises[index] > 0 else None


def _drafting(bench: Bench, running: Running, costs: "Costs", way: Way, batch: int, turn: int) -> float:
    """Seconds that drafting adds to a step in which the drafter works: as the backend tells, or the rest of a call
    after its checks. The call decodes one of the shortest prompts in all rows, so that all rows end at the same step.
    """
    shortest, (_, num_tokens) = sorted(bench.ids(bench.rows(CHOOSING)), key=len), _call(bench, batch, turn, way.nodes)
    decoded = running.decode([shortest[turn % len(shortest)]] * batch, num_tokens)
    if not np.isnan(decoded.drafting):
        return decoded.drafting / max(1, decoded.drafting_steps)
    steps = (sum(map(len, decoded.tokens)) - decoded.accepted) / batch - 1
    drafts = max(0.0, decoded.drafts / batch - way.at_prompt)  # that of the prefill is no step
    with_draft, without = costs.check(batch, np.array([decoded.drafted / max(1, decoded.drafts), 0.0]))
    checks = drafts * with_draft + max(0.0, steps - drafts) * without
    return (decoded.seconds - decoded.prefill - checks) / max(1.0, steps if way.drafter.traits.reads_text else drafts)


def _call(bench: Bench, batch: int, turn: int, nodes: int) -> tuple[list[list[int]], int]:
    """The choosing prompts of a timed call with so many draft nodes, and its tokens: fewer, after the shortest prompts,
    where nothing is raced.
    """
    calls, num_tokens = bench.calls(CHOOSING, batch), max(LEAST_TOKENS, MOST_ROWS // (batch * max(1, nodes)))
    if any(bench.raced.values()):
        return bench.ids(calls[turn % len(calls)]), min(FORCED_TOKENS, num_tokens)
    return bench.ids(min(calls, key=lambda rows: max(map(len, bench.ids(rows))))), min(FORCED_TOKENS, num_tokens) // 3


def _row(bench: Bench, batch: int, method: str, shape: str, nodes: int, seconds: Sequence[float]) -> dict[str, object]:
    low, middle, high = 1000 * np.quantile(seconds, [0.25, 0.5, 0.75])
    return dict(backend=bench.backend.name, batch=batch, method=method, shape=shape, nodes=nodes, ms=middle, low=low,
                high=high, n=len(seconds))


def with_drafting(rows: pd.DataFrame, here: pd.DataFrame) -> pd.DataFrame:
    """Rows of the table "costs" of another machine; drafting that they lack is taken to be as large a part of a plain
    step there as in the rows of this one.
    """
    plain_there, plain_here = (part.loc[part["method"] == PLAIN, "ms"].min() for part in (rows, here))
    drafting = here.query(DRAFTING).assign(ms=lambda part: part["ms"] * plain_there / plain_here)
    return pd.concat([rows, drafting[~drafting["method"].isin(rows["method"])]])


# --------------------------------------------------------------------------------------------------------------- curves


def curve_through(amounts: Sequence[float], values: Sequence[float]) -> Curve:
    """The curve that never falls and is closest to measured points in least squares: more work takes no less time. It
    is linear between points, constant below the first; beyond the last it has the mean slope over the last half of the
    amounts, since the last two points may be the two sides of a step.
    """
    amounts, where, counts = np.unique(np.asarray(amounts, dtype=float), return_inverse=True, return_counts=True)
    values = isotonic_regression(np.bincount(where, values) / counts, weights=counts).x
    half = max(amounts[0], amounts[-1] / 2)
    slope = (values[-1] - np.interp(half, amounts, values)) / max(amounts[-1] - half, 1e-12)
    return lambda amount: np.interp(amount, amounts, values) + slope * np.maximum(np.subtract(amount, amounts[-1]), 0.0)


@dataclass(frozen=True)
class Costs:
    """Seconds of a backend's steps, between measured batch sizes linear.

    plain: over the batch size. checks: by batch size, over draft nodes per row; where none without a draft was timed,
    such a step costs a plain one. drafting: by batch size and method (see `drafting_seconds`); others draft at no cost.
    """

    plain: Curve
    checks: Mapping[int, Curve]
    drafting: Mapping[int, Mapping[str, Callable[[Tree | Growth], float]]]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Costs":
        """rows: those of the table "costs" of one backend."""
        rows = rows.assign(seconds=rows["ms"].clip(lower=0) / 1000)
        plain, checks = (rows[rows["method"] == method] for method in (PLAIN, FORCED))
        idle = set(checks.loc[checks["nodes"] == 0, "batch"])
        checks = pd.concat([checks, plain[plain["batch"].isin(set(checks["batch"]) - idle)]])
        return cls(curve_through(plain["batch"], plain["seconds"]),
                   {batch: curve_through(part["nodes"], part["seconds"]) for batch, part in checks.groupby("batch")},
                   {batch: {method: drafting_seconds(one) for method, one in part.groupby("method")}
                    for batch, part in rows.query(DRAFTING).groupby("batch")})

    def check(self, rows: int, nodes: np.ndarray) -> np.ndarray:
        """Seconds of steps that check float[S] nodes per row of so many rows."""
        return _between(rows, {batch: curve(nodes) for batch, curve in self.checks.items()})

    def draft(self, way: Way, rows: int) -> float:
        """Seconds that drafting adds to a step of so many rows."""
        seconds = {batch: methods[way.method](way.shape) for batch, methods in self.drafting.items()
                   if way.method in methods}
        return float(_between(rows, seconds)) if seconds else 0.0


def _between(rows: int, by_batch: Mapping[int, np.ndarray | float]) -> np.ndarray | float:
    """Linear between values by batch size, constant outside."""
    batches = sorted(by_batch)
    weights = [np.interp(rows, batches, is_batch) for is_batch in np.eye(len(batches))]
    return sum(weight * by_batch[batch] for weight, batch in zip(weights, batches))


def drafting_seconds(rows: pd.DataFrame) -> Callable[[Tree | Growth], float]:
    """Seconds of drafting a shape, from rows of one method and batch size: a constant, and one forward pass of the
    drafter per level, by the nodes that it takes; of a tree that a rule grows, over the rule's budget.

    The fit is by least squares of relative errors, without negative terms.
    """
    shapes, seconds = [named(name) for name in rows["shape"]], np.maximum(rows["seconds"], LEAST_SECONDS)
    fixed = [(widths(tree), value) for tree, value in zip(shapes, seconds) if isinstance(tree, Tree)]
    amounts = np.unique(np.concatenate([levels for levels, _ in fixed]))
    design = np.array([[1.0, *((levels == amount).sum() for amount in amounts)] for levels, _ in fixed])
    values = np.array([value for _, value in fixed])
    constant, *levels = nnls(design / values[:, None], np.ones(len(values)))[0]
    level, points = curve_through(amounts, levels), {}
    for shape, value in zip(shapes, seconds):
        if isinstance(shape, Growth):
            points.setdefault(type(shape), []).append((shape.budget, value))
    grown = {rule: curve_through(*zip(*of_rule)) for rule, of_rule in points.items()}

    def seconds_of(shape: Tree | Growth) -> float:
        """A level of a tree whose rule was not timed is taken to be one node wide."""
        if isinstance(shape, Growth):
            curve = grown.get(type(shape))
            return float(curve(shape.budget) if curve else constant + shape.max_depth * level(1))
        return constant + float(np.sum(level(widths(shape)))) if shape.budget else 0.0

    return seconds_of


def widths(tree: Tree) -> np.ndarray:
    """int64[D]: the nodes with children at each depth, from the root: the rows of each forward pass of the drafter."""
    inner = np.unique(tree.parents[1:])
    return np.bincount(tree.depth[inner], minlength=1) if len(inner) else np.zeros(0, dtype=np.int64)
