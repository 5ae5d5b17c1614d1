"""What choosing a tree from little text costs, and chained rounds, on traces made for the purpose."""

import numpy as np
import pytest

from lib import replay
from lib.replay import acceptance
from lib.replay.rank_paths import frequent
from lib.studies.acceptance import measure, summary
from lib.tests.replay.test_replay import synthetic
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


def test_stability_ends_with_the_tree_of_all_prompts():
    rng = np.random.default_rng(3)
    made = of_ranks(np.minimum(rng.geometric(0.5, (14, 30)) - 1, 9))
    choosing, judged = made.select(np.arange(14) < 6), made.select(np.arange(14) >= 6)
    rows = measure.choose_from_prompts(choosing, judged, "d", 8, np.random.default_rng(0), draws=3)
    assert sorted(set(rows["prompts"])) == measure.doubled(6) == [1, 2, 4, 6]
    last = rows[rows["prompts"] == 6]
    assert (last["draw"] == 0).all() and set(last["positions"]) == {180}
    whole = frequent(choosing, 8, "d")
    expected = acceptance.tally_walk(judged, acceptance.rounds_of(judged, whole, "d"))["accepted"].sum()
    assert last.loc[last["family"] == "frequent", "accepted"].sum() == expected
    lost = summary.by_text(rows[rows["family"] == "frequent"], np.random.default_rng(0))
    assert set(lost["prompts"]) == {1, 2, 4} and (lost["n_prompts"] == 8).all()
    assert summary.stable_from(lost, tolerance=100) == 1 and summary.stable_from(lost, tolerance=-100) is None
