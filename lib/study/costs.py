"""What the steps of a backend cost: plain steps, steps that check forced drafts, and what drafting adds.

The table "costs" has a row per backend, batch size, method and shape: PLAIN, FORCED for checks by their nodes per row,
and for each drafter whose drafting takes time a few shapes. `Costs` makes curves of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression, nnls

from lib.engines.driver import Decoded, Running
from lib.engines.methods import FORCED, PLAIN, PLAIN_WAY, Way, forced
from lib.study.bench import CHOOSING, Bench
from lib.trees import named
from lib.trees.growth import Growth
from lib.trees.tree import Tree

NODES = (1, 2, 4, 8, 16, 32, 64)  # of forced drafts at first; 0 where an idle round is no plain step
HALVINGS = 4  # further numbers of nodes, each in the middle of the steepest rise
FORCED_TOKENS = 24  # of a timed call
REPEATS = 4  # calls of each point, after one to warm up
LEAST_SECONDS = 1e-9  # of a draft: errors are relative, and a clock may give 0


# ------------------------------------------------------------------------------------------------------------ measuring


def measure(bench: Bench, most_nodes: int) -> pd.DataFrame:
    """The backend's rows of the table "costs" with missing ones timed: plain steps and checks of up to `most_nodes`
    nodes, in shuffled turns, then checks in the middle of the steepest rises.
    """
    check = forced(most_nodes)
    nodes = [n for n in (0, *NODES) if n <= most_nodes and (n or bench.backend.idles)]
    points = [(batch, PLAIN, 0) for batch in bench.batches_of(PLAIN_WAY)]
    points += [(batch, FORCED, n) for batch in bench.batches_of(check) for n in nodes]
    _time_checks(bench, points, check)
    for halvings in range(1, HALVINGS + 1):
        checks = bench.rows_of("costs").query("method == @FORCED")
        points = [(batch, FORCED, middle) for batch, rows in checks.groupby("batch")
                  if len(rows) < len(nodes) + halvings and (middle := _steepest(rows))]
        _time_checks(bench, points, check)
    return bench.rows_of("costs")


def _time_checks(bench: Bench, points: Sequence[tuple[int, str, int]], check: Way) -> None:
    """Adds the rows of points (batch, method, nodes) that are missing."""
    table = bench.store.open("costs")
    missing = [point for point in points if (bench.backend.name, *point[:2], f"nodes:{point[2]}") not in table.keys()]
    if not missing:
        return
    bench.say(f"{len(missing)} points of the cost of a check")
    times: dict[tuple, list[float]] = {point: [] for point in missing}
    order = bench.generator("costs", *missing[0])
    with bench.running(PLAIN_WAY, check) as running:
        for turn in range(REPEATS + 1):
            for index in order.permutation(len(missing)):
                batch, method, nodes = missing[index]
                calls = bench.calls(CHOOSING, batch)
                decoded = running[method].decode(bench.ids(calls[turn % len(calls)]), FORCED_TOKENS,
                                                 drafted=nodes if method == FORCED else None)
                times[missing[index]].append(_step(decoded))
    table.extend(_row(bench, batch, method, f"nodes:{nodes}", nodes, seconds[1:])
                 for (batch, method, nodes), seconds in times.items())


def measure_drafting(bench: Bench, ways: Sequence[Way]) -> pd.DataFrame:
    """The backend's rows of the table "costs" with the missing ones of what drafting by these ways adds to a step."""
    table, costs = bench.store.open("costs"), Costs.of(bench.rows_of("costs"))
    for way in ways:
        missing = [batch for batch in bench.batches_of(way)
                   if (bench.backend.name, batch, way.method, way.shape_name) not in table.keys()]
        if missing:
            bench.say(f"the cost of drafting by {way.name}")
        with bench.running(*[way] if missing else []) as running:
            for batch in missing:
                seconds = [_drafting(bench, running[way.name], costs, way, batch, turn)
                           for turn in range(REPEATS + 1)]
                table.append(**_row(bench, batch, way.method, way.shape_name, way.nodes, seconds[1:]))
    return bench.rows_of("costs")


def _step(decoded: Decoded) -> float:
    """Seconds of a step after the prefill, without drafting."""
    steps = decoded.steps if decoded.steps > 0 else max(map(len, decoded.tokens)) - 1
    return (decoded.seconds - decoded.prefill - np.nan_to_num(decoded.drafting)) / max(1, steps)


def _drafting(bench: Bench, running: Running, costs: "Costs", way: Way, batch: int, turn: int) -> float:
    """Seconds that drafting adds to a step in which the drafter works: as the backend tells, or the rest of a call after
    its checks. The call decodes one prompt in all rows, so that all rows end at the same step.
    """
    calls = bench.calls(CHOOSING, batch)
    decoded = running.decode(bench.ids(calls[turn % len(calls)][:1] * batch), FORCED_TOKENS)
    if not np.isnan(decoded.drafting):
        return decoded.drafting / max(1, decoded.drafting_steps)
    steps = (sum(map(len, decoded.tokens)) - sum(decoded.accepted)) / batch - 1
    drafts = max(0.0, decoded.drafts / batch - way.at_prompt)  # that of the prefill is no step
    with_draft, without = costs.check(batch, np.array([decoded.drafted / max(1, decoded.drafts), 0.0]))
    checks = drafts * with_draft + max(0.0, steps - drafts) * without
    return (decoded.seconds - decoded.prefill - checks) / max(1.0, steps if way.drafter.traits.reads_text else drafts)


def _row(bench: Bench, batch: int, method: str, shape: str, nodes: int, seconds: Sequence[float]) -> dict[str, object]:
    low, middle, high = 1000 * np.quantile(seconds, [0.25, 0.5, 0.75])
    return dict(backend=bench.backend.name, batch=batch, method=method, shape=shape, nodes=nodes, ms=middle, low=low,
                high=high, n=len(seconds))


def _steepest(checks: pd.DataFrame) -> int | None:
    """The number of nodes in the middle of those between which a check's time rises most; None where they adjoin."""
    curve = Curve.through(checks["nodes"], checks["ms"])
    rises = np.diff(curve.values) * (np.diff(curve.at) > 1)
    index = int(np.argmax(rises)) if len(rises) else 0
    return int(curve.at[index] + curve.at[index + 1]) // 2 if len(rises) and rises[index] > 0 else None


# --------------------------------------------------------------------------------------------------------------- curves


@dataclass(frozen=True)
class Curve:
    """Values that never fall over an amount of work: linear between points, constant below the first; beyond the last
    with the mean slope over the last half of the amounts, since the last two points may be the two sides of a step.

    at, values: float[P], increasing, and not decreasing.
    """

    at: np.ndarray
    values: np.ndarray

    @classmethod
    def through(cls, at: Sequence[float], values: Sequence[float]) -> "Curve":
        """The closest one to measured points in least squares: more work takes no less time. Points at one place are
        averaged. ValueError where a number is not finite.
        """
        at, values = np.asarray(at, dtype=float), np.asarray(values, dtype=float)
        if not len(at) or not (np.isfinite(at).all() and np.isfinite(values).all()):
            raise ValueError("a curve through times of which one is missing: measure the costs again")
        amounts, where, counts = np.unique(at, return_inverse=True, return_counts=True)
        return cls(amounts, isotonic_regression(np.bincount(where, values) / counts, weights=counts).x)

    def __call__(self, amount) -> np.ndarray:
        """Values for float[...] amounts."""
        amount = np.asarray(amount, dtype=float)
        half = max(self.at[0], self.at[-1] / 2)
        slope = (self.values[-1] - np.interp(half, self.at, self.values)) / max(self.at[-1] - half, 1e-12)
        return np.interp(amount, self.at, self.values) + slope * np.maximum(amount - self.at[-1], 0.0)


@dataclass(frozen=True)
class Costs:
    """Seconds of a backend's steps, between measured batch sizes linear.

    plain: over the batch size. checks: by batch size, over draft nodes per row; where none without a draft was timed,
    such a step costs a plain one. drafting: by batch size and method (see `Drafting`); others draft at no cost.
    """

    plain: Curve
    checks: Mapping[int, Curve]
    drafting: Mapping[int, Mapping[str, "Drafting"]]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Costs":
        """rows: those of the table "costs" of one backend."""
        rows = rows.assign(seconds=rows["ms"].clip(lower=0) / 1000)
        plain, checks = (rows[rows["method"] == method] for method in (PLAIN, FORCED))
        idle = set(checks.loc[checks["nodes"] == 0, "batch"])
        checks = pd.concat([checks, plain[plain["batch"].isin(set(checks["batch"]) - idle)]])
        drafting = rows[~rows["method"].isin([PLAIN, FORCED])]
        return cls(Curve.through(plain["batch"], plain["seconds"]),
                   {int(batch): Curve.through(part["nodes"], part["seconds"]) for batch, part in checks.groupby("batch")},
                   {int(batch): {method: Drafting.of(one) for method, one in part.groupby("method")}
                    for batch, part in drafting.groupby("batch")})

    def check(self, rows: int, nodes: np.ndarray) -> np.ndarray:
        """Seconds of steps that check float[S] nodes per row of so many rows."""
        return _between(rows, {batch: curve(nodes) for batch, curve in self.checks.items()})

    def draft(self, way: Way, rows: int) -> float:
        """Seconds that drafting adds to a step of so many rows."""
        seconds = {batch: methods[way.method].seconds(way.shape) for batch, methods in self.drafting.items()
                   if way.method in methods}
        return float(_between(rows, seconds)) if seconds else 0.0


def _between(rows: int, by_batch: Mapping[int, np.ndarray | float]) -> np.ndarray | float:
    """Linear between values by batch size, constant outside."""
    batches = np.array(sorted(by_batch))
    upper = min(int(np.searchsorted(batches, rows)), len(batches) - 1)
    lower = upper if batches[upper] <= rows else max(upper - 1, 0)
    low, high = int(batches[lower]), int(batches[upper])
    share = 0.0 if low == high else min(max((rows - low) / (high - low), 0.0), 1.0)
    return (1 - share) * by_batch[low] + share * by_batch[high]


@dataclass(frozen=True)
class Drafting:
    """Seconds of drafting a tree: `once`, and one forward pass of the drafter per level, by the nodes that it takes; of
    a tree that a rule grows, over the rule's budget, by rule.
    """

    once: float
    level: Curve
    grown: Mapping[type, Curve]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Drafting":
        """The fit to rows of one method and batch size, by least squares of relative errors, without negative terms."""
        shapes, seconds = [named(name) for name in rows["shape"]], np.maximum(rows["seconds"], LEAST_SECONDS)
        fixed = [(widths(tree), value) for tree, value in zip(shapes, seconds) if isinstance(tree, Tree)]
        amounts = np.unique(np.concatenate([levels for levels, _ in fixed]))
        design = np.array([[1.0, *((levels == amount).sum() for amount in amounts)] for levels, _ in fixed])
        values = np.array([value for _, value in fixed])
        once, *levels = nnls(design / values[:, None], np.ones(len(values)))[0]
        grown: dict[type, list[tuple[int, float]]] = {}
        for rule, value in zip(shapes, seconds):
            if isinstance(rule, Growth):
                grown.setdefault(type(rule), []).append((rule.budget, value))
        return cls(once, Curve.through(amounts, levels), {rule: Curve.through(*zip(*points)) for rule, points in grown.items()})

    def seconds(self, shape: Tree | Growth) -> float:
        """Seconds of drafting a shape; a level of a grown tree that was not timed is taken to be one node wide."""
        if isinstance(shape, Growth):
            curve = self.grown.get(type(shape))
            return float(curve(shape.budget) if curve else self.once + shape.max_depth * self.level(1))
        return self.once + float(np.sum(self.level(widths(shape)))) if shape.budget else 0.0


def widths(tree: Tree) -> np.ndarray:
    """int64[D]: the nodes with children at each depth, from the root: the rows of each forward pass of the drafter."""
    inner = np.unique(tree.parents[1:])
    return np.bincount(tree.depth[inner], minlength=1) if len(inner) else np.zeros(0, dtype=np.int64)
