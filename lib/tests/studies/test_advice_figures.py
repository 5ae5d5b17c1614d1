"""Figures of the advice: everything asked for is drawn, and what they mark is in the table."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lib import cost
from lib.cost.best_tree import Limits
from lib.studies.advice import figures, measure
from lib.studies.speed import figures as speed_figures
from lib.tests.cost import test_advice, test_cost

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def test_cost_curves_have_a_point_a_shape_and_a_line_a_batch():
    both = cost.Costs(pd.concat([test_advice.costs(1).rows, test_advice.costs(4, 3.0).rows]))
    left, right = figures.cost_curves(both, "t", "good").axes
    assert len(left.lines) == len(right.lines) == len(left.collections) == 2
    assert all(len(points.get_offsets()) == len(cost.SHAPES) for points in left.collections)


def test_the_ring_stands_on_the_best_budget_of_each_batch():
    both = cost.Costs(pd.concat([test_advice.costs(1).rows, test_advice.costs(4, 3.0).rows]))
    rows = measure.over_budget(test_advice.recorded(), both, "good", batches=[1, 4], prefix=64,
                                     budgets=[1, 2, 4, 8], limits=Limits(8, 4), generator=np.random.default_rng(0))
    figure = figures.speed_over_budget(rows)
    for axis, batch in zip(figure.axes, (1, 4)):
        own = rows[(rows["batch"] == batch) & (rows["family"] == measure.OURS)]
        ring = axis.lines[-2].get_xydata()[0]  # before the line at 1
        assert ring[1] == own["speedup"].max() and ring[0] in set(own["budget"])


def test_formulas_have_a_line_a_source():
    rows = measure.beside_formulas(test_advice.recorded(), test_advice.costs(), "good", batches=[1], prefix=64,
                                         lengths=[1, 3, 5], generator=np.random.default_rng(0))
    figure = figures.formulas(rows)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(figures.BY)


def test_predicted_stands_over_measured():
    rows = pd.DataFrame([dict(batch=b, measured=100.0 * b, predicted=110.0 * b, predicted_low=90.0 * b,
                              predicted_high=130.0 * b) for b in (1, 4)])
    axis = speed_figures.predicted_and_measured(rows).axes[0]
    assert axis.get_xlim() == axis.get_ylim() and len(axis.get_legend().get_texts()) == 2


def test_each_pairs_costs_are_drawn_for_the_tree_and_the_chain():
    rows = test_cost.table()
    found = measure.over_budget_with_costs_of(
        test_advice.recorded(), "d", {"own": rows, "random:a|random:b": rows.assign(verify_ms=50.0)}, batches=[1],
        prefix=64, budgets=[1, 2, 4, 8], limits=Limits(8, 4), generator=np.random.default_rng(0))
    axis, = figures.speed_by_size(found).axes
    assert len(axis.lines) == 2 * 2 + 1 and len(axis.collections) == 2  # and the line at 1
