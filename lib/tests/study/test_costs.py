"""Curves of costs: what they recover of known steps, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.engines.methods import FORCED, PLAIN, Way
from lib.study.costs import HALVINGS, NODES, Costs, _steepest, curve_through, drafting_seconds, widths
from lib.trees import named


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 64), st.floats(0.1, 9)), min_size=1, max_size=20))
def test_a_curve_never_falls_and_passes_through_points_that_do_not(points):
    amounts, seconds = np.array(points).T
    grid = curve_through(amounts, seconds)(np.arange(0, 130))
    assert (np.diff(grid) >= -1e-9).all() and grid[0] == grid[int(amounts.min())]
    amounts = np.unique(amounts)
    rising = np.sort(seconds)[: len(amounts)]
    assert curve_through(amounts, rising)(amounts) == pytest.approx(rising)


def test_beyond_the_last_point_a_curve_rises_as_over_its_last_half():
    curve = curve_through([1, 8, 9, 16], [1.0, 1.0, 2.0, 2.0])
    assert curve(32) == pytest.approx(2 + 16 * (2 - 1) / 8) and curve(0) == 1


@pytest.mark.parametrize("step", [3, 12, 20, 37, 50])
def test_a_step_of_a_curve_is_found_where_it_is(step):
    nodes = list(NODES)
    for _ in range(HALVINGS):
        checks = pd.DataFrame({"nodes": nodes, "ms": [10.0 + 5 * (n >= step) for n in nodes]})
        nodes += [middle for middle in [_steepest(checks)] if middle]
    assert max(n for n in nodes if n < step) >= step - 2 and min(n for n in nodes if n >= step) <= step + 1


@pytest.mark.parametrize(("once", "levels"), [(0.0, {1: 1.0, 4: 1.5}), (2.0, {1: 0.5, 4: 0.5}), (3.0, {1: 0.0, 4: 0.0})])
def test_drafting_is_split_into_one_part_and_levels(once, levels):
    shapes = ("chain:1", "chain:4", "independent:4x4")
    seconds = [once + sum(levels[width] for width in widths(named(shape)).tolist()) for shape in shapes]
    fit = drafting_seconds(pd.DataFrame({"shape": shapes, "seconds": seconds}))
    assert fit(named("chain:8")) == pytest.approx(once + 8 * levels[1]) and fit(named("chain:0")) == 0


def test_costs_are_linear_between_batches_and_a_step_without_a_draft_costs_a_plain_one():
    rows = [(batch, PLAIN, 0, 10.0 * batch) for batch in (1, 4)]
    rows += [(batch, FORCED, nodes, 10.0 * batch + nodes * batch) for batch in (1, 4) for nodes in (4, 8)]
    rows += [(1, "model", 1, 3.0)]
    table = pd.DataFrame(rows, columns=["batch", "method", "nodes", "ms"]).assign(shape="chain:1")
    costs = Costs.of(table)
    assert costs.check(1, np.array([0, 4, 6])) == pytest.approx([0.010, 0.014, 0.016])
    assert costs.check(2, np.array([8])) == pytest.approx([(2 * 0.018 + 0.072) / 3])
    way = Way("model, chain:1", "model", named("chain:1"), "chain:1")
    assert costs.draft(way, 4) == pytest.approx(0.003) and costs.draft(Way("sam", "sam"), 1) == 0
