"""Local search on chained rounds, and what choosing from little or other text costs, on traces made for the purpose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay
from lib.replay import acceptance, search
from lib.replay.search import frequent
from lib.studies.acceptance import ALL, AS_FEW, CHAINED, OWN, UNIFORM, measure, summary
from lib.tests.replay.test_replay import synthetic
from lib.tests.replay.test_search import all_trees
from lib.trees import Tree, shapes

ABOUT = {"target": "t", "protocol": acceptance.CONTINUATION, "temperature": 0.0}


def of_ranks(ranks, prompts=None, kinds=None):
    """A trace of these ranks int[N, L], without ends or loops."""
    ranks = np.asarray(ranks, dtype=np.int32)
    rows, width = ranks.shape
    made = synthetic(np.random.default_rng(0), rows=rows, width=width)
    full = np.full(rows, width)
    about = {"ranks": {"d": ranks}, "lengths": full, "loops": full, "about": ABOUT}
    return replay.Trace(**{**vars(made), **about, "prompts": prompts or made.prompts, "kinds": kinds or made.kinds})


def test_uniform_starts_tie_where_chained_rounds_do_not():
    made = of_ranks(np.tile([0, 0, 1], 40)[None])
    star = Tree.from_choices([(0,), (1,)])
    chain = shapes.chain(2)
    assert replay.accepted_lengths(made, star).sum() == pytest.approx(replay.accepted_lengths(made, chain).sum(), abs=1)
    assert replay.efficiency(made, star) == 2 and replay.efficiency(made, chain) == 3
    assert search.improve(made, star) == chain == search.improve(made, chain)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_the_search_climbs_and_stops_where_no_swap_helps(seed, budget):
    made = synthetic(np.random.default_rng(seed), rows=6, width=12, ranks=3)
    start = frequent(made, budget)
    found = search.improve(made, start, width=64)
    gains = {tree: replay.efficiency(made, tree) for tree in all_trees(budget, 3, 3)}
    if np.isnan(replay.efficiency(made, start)):
        assert found == start
        return
    own = set(found.choices())
    # The search takes no path that the trace lacks; such a one could at best stand where a useless one does.
    neighbours = [value for tree, value in gains.items() if len(own & set(tree.choices())) == budget - 1]
    reached = replay.efficiency(made, found)
    assert reached >= replay.efficiency(made, start) and found.budget == budget
    assert reached >= max((value for value in neighbours if not np.isnan(value)), default=0) - 1e-9


def test_a_tree_of_its_own_kind_gains_what_the_mixture_loses():
    ranks = np.array([[0] * 12, [0] * 12, [1] * 12, [1] * 12])
    made = of_ranks(ranks, prompts=tuple("abcd"), kinds=("x", "x", "y", "y"))
    choosing, judged = made.select(np.array([0, 2])), made.select(np.array([1, 3]))
    rows = measure.choose_by_kind(choosing, judged, "d", 2, np.random.default_rng(0), draws=4)
    gains = (rows.groupby(["kind", "arm"])["accepted"].sum() / rows.groupby(["kind", "arm"])["rounds"].sum()).unstack()
    assert (gains[OWN] == 2).all() and (gains[ALL] == 1).all()
    lost = summary.losses(rows, [], "arm", OWN, np.random.default_rng(0)).set_index("arm")
    assert lost.loc[ALL, "value"] == -1 and lost.loc[ALL, "n_prompts"] == 2
    assert set(rows.loc[rows["arm"] == AS_FEW, "prompts"]) == {1}


def test_the_objectives_differ_where_uniform_starts_tie():
    made = of_ranks(np.tile([0, 0, 1], (2, 20)))
    rows = measure.choose_by_objective(made.select(np.array([0])), made.select(np.array([1])), "d", [2])
    gained = rows.set_index("arm")["accepted"] / rows.set_index("arm")["rounds"]
    assert gained[UNIFORM] == 1 and gained[CHAINED] == 2
    assert rows.set_index("arm").loc[CHAINED, "shared"] == 0.5


def test_stability_ends_with_the_tree_of_all_prompts():
    rng = np.random.default_rng(3)
    made = of_ranks(np.minimum(rng.geometric(0.5, (14, 30)) - 1, 9))
    choosing, judged = made.select(np.arange(14) < 6), made.select(np.arange(14) >= 6)
    rows = measure.choose_from_prompts(
        choosing, judged, "d", ["frequent", "optimal"], 8, np.random.default_rng(0), draws=3)
    assert sorted(set(rows["prompts"])) == measure.doubled(6) == [1, 2, 4, 6]
    last = rows[rows["prompts"] == 6]
    assert (last["shared"] == 1).all() and (last["draw"] == 0).all() and set(last["positions"]) == {180}
    whole = frequent(choosing, 8, "d")
    expected = acceptance.tally_walk(judged, acceptance.rounds_of(judged, whole, "d"), whole.budget)["accepted"].sum()
    assert last.loc[last["family"] == "frequent", "accepted"].sum() == expected
    lost = summary.losses(rows[rows["family"] == "frequent"], [], "prompts", 6, np.random.default_rng(0))
    assert set(lost["prompts"]) == {1, 2, 4} and (lost["n_prompts"] == 8).all()
    assert summary.stable_from(lost, tolerance=100) == 1 and summary.stable_from(lost, tolerance=-100) is None
