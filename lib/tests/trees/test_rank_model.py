"""Ceilings against very large trees and against Sequoia's bounds; the comparison against trees taken one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.trees import rank_model, shapes

STEEP = [0.5, 0.1, 0.05]


@pytest.mark.parametrize("family", shapes.FAMILIES)
def test_a_ceiling_is_what_a_very_large_tree_comes_to(family):
    limit = rank_model.ceiling(family, STEEP)
    large, smaller = (shapes.expected_accepted(shapes.at_budget(family, budget, acceptance=STEEP), STEEP)
                      for budget in (700, 300))
    assert smaller <= large <= limit + 1e-9
    # The gap of a tree that keeps branching closes with a power of the budget only: it must at least be closing.
    assert large == pytest.approx(limit, rel=0.08) and limit - large < 0.8 * (limit - smaller) + 1e-6


@settings(deadline=None, max_examples=60)
@given(st.floats(0.05, 0.9), st.integers(1, 6))
def test_chains_side_by_side_add_at_most_one_token_to_one_chain(first, count):
    acceptance = [first] + [(1 - first) / 5] * 5
    one, many = (rank_model.ceiling(f"independent:{chains}", acceptance) for chains in (1, count))
    assert one == pytest.approx(first / (1 - first)) == rank_model.ceiling("chain", acceptance)
    assert one - 1e-9 <= many <= one + 1 + 1e-9


def test_a_tree_that_covers_every_rank_grows_without_end():
    assert rank_model.ceiling("optimal", [0.6, 0.4]) == float("inf")
    assert rank_model.ceiling("kary:2", [0.6, 0.4]) == float("inf")
    assert rank_model.ceiling("star", [0.6, 0.4]) == pytest.approx(1)


def test_every_family_of_the_registry_has_a_ceiling():
    for family in shapes.FAMILIES:
        assert np.isfinite(rank_model.ceiling(family, STEEP))
    with pytest.raises(ValueError, match="'fan:2' is unknown"):
        rank_model.ceiling("fan:2", STEEP)


def test_the_comparison_says_what_each_tree_says_itself():
    rows = rank_model.compare(["chain", "kary:2", "optimal"], [4, 1, 2], {"steep": STEEP, "even": [0.3, 0.3]})
    assert len(rows) == 3 * 3 * 2 and list(rows["budget"][:3]) == [1, 2, 4]
    row = rows[(rows.model == "steep") & (rows.family == "chain") & (rows.budget == 4)].iloc[0]
    assert (row.depth, row.leaves) == (4, 1)
    assert row.accepted == pytest.approx(0.5 + 0.25 + 0.125 + 0.0625)
    assert row.rate == pytest.approx(row.accepted / 4) and row.gain == pytest.approx(0.125 + 0.0625)
    assert (rows.of_optimal <= 1 + 1e-12).all() and (rows[rows.family == "optimal"].of_optimal == 1).all()


def test_saturation_names_the_first_budget_near_the_ceiling_or_none():
    models = {"steep": STEEP, "endless": [0.6, 0.4]}
    rows = rank_model.compare(["chain", "optimal"], range(1, 17), models)
    found = rank_model.saturates_at(rows, models, share=0.9).set_index(["model", "family"])
    assert found.loc[("steep", "chain"), "budget"] == 4, "1 - 0.5 ** 4 is the first beyond 0.9"
    assert np.isinf(found.loc[("endless", "optimal"), "ceiling"])
    assert found["budget"].isna().loc[("endless", "optimal")]


def test_gain_by_doubling_is_the_slope_of_a_straight_line():
    slope, explained = rank_model.gain_by_doubling([1, 2, 4, 8], [0.5, 0.9, 1.3, 1.7])
    assert slope == pytest.approx(0.4) and explained == pytest.approx(1)
    assert rank_model.gain_by_doubling([1, 2, 4, 8], [0.5, 0.9, 1.0, 1.0])[1] < 0.9
