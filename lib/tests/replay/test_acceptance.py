"""The study's arithmetic: every round is counted once and in its place, and live decoding fills the same table."""

import numpy as np
import pytest

from lib import replay
from lib.replay import acceptance
from lib.tests.replay.test_replay import synthetic
from lib.trees import shapes

ABOUT = {"target": "t", "protocol": acceptance.CONTINUATION, "temperature": 0.0}


def recorded(seed=0, protocol=acceptance.CONTINUATION, **kwargs):
    made = synthetic(np.random.default_rng(seed), rows=30, width=24, **kwargs)
    return replay.Trace(
        **{**vars(made), "about": ABOUT | {"protocol": protocol}, "prompts": tuple(f"p{i // 3}" for i in range(30)),
           "loops": np.maximum(made.lengths - 6, 0)}
    )


def test_a_tally_counts_every_round_once():
    made, tree = recorded(), shapes.parse("kary:2@14")
    rounds = acceptance.rounds_of(made, tree, "d")
    table = acceptance.tally_walk(made, rounds)
    assert table["rounds"].sum() == len(rounds.rows) and table["accepted"].sum() == rounds.accepted.sum()
    assert (table["drafted"] == table["rounds"] * tree.budget).all()
    assert table[table.stretch == "loop"]["rounds"].sum() == (rounds.starts >= made.loops[rounds.rows]).sum()


def test_a_trace_without_rows_has_an_empty_tally():
    made = recorded().select(np.zeros(30, bool))
    found = acceptance.evaluate(made, "d", [("chain", 2, shapes.chain(2))])
    assert found.empty and {"rounds", "accepted", "family", "target"} <= {*found.columns}


def test_depths_add_up_to_the_accepted_length():
    made, tree = recorded(), shapes.parse("comb:3@12")
    rounds = acceptance.rounds_of(made, tree, "d")
    depth = acceptance.by_depth(made, tree, rounds)
    table = acceptance.tally_walk(made, rounds)
    assert depth["accepted"].sum() == table[table.stretch == "before"]["accepted"].sum()
    wide = depth.groupby("depth")[["rounds", "reached", "accepted"]].sum()
    assert wide.loc[1, "reached"] == wide.loc[1, "rounds"]  # every round is at the root, which has children
    assert (wide["accepted"] <= wide["reached"]).all()
    assert (wide["reached"].to_numpy()[1:] <= wide["accepted"].to_numpy()[:-1]).all()


@pytest.mark.parametrize("ended", [True, False])
def test_real_text_starts_count_one_round_a_row(ended):
    """Every rank is 0, so that a chain accepts all there is: what EOS ended, or else texts that the chain fits into."""
    made = recorded(protocol=acceptance.REAL_TEXT, ranks=1, ended=ended)
    rounds = acceptance.rounds_of(made, shapes.chain(12), "d")
    counted = made.lengths > (0 if ended else 12)
    assert np.array_equal(rounds.rows, np.flatnonzero(counted)) and (rounds.starts == 0).all()
    assert np.array_equal(rounds.accepted, np.minimum(made.lengths, 12)[counted])


def test_acceptance_by_rank_counts_positions_before_loops():
    made = recorded()
    seen = np.concatenate([made.ranks["d"][i, : min(made.loops[i], made.lengths[i])] for i in range(30)])
    by_rank = acceptance.acceptance_by_rank(made, "d")
    assert by_rank[:4] == pytest.approx(np.bincount(seen, minlength=4) / len(seen))
    table = acceptance.by_rank(made, "d")
    assert table["positions"].sum() == len(seen)
    by_depth = acceptance.acceptance_by_depth_and_rank(made, "d")
    assert by_depth[0] == pytest.approx(by_rank) and by_depth.shape == (64, 16)


def test_grown_trees_gain_the_most_on_what_they_were_grown_from():
    rng = np.random.default_rng(1)
    ranks = np.minimum(rng.geometric(0.5, (30, 24)) - 1, 9).astype(np.int32)
    made = replay.Trace(**{**vars(recorded()), "ranks": {"d": ranks}, "tokens": np.zeros((30, 25), np.int32),
                           "lengths": np.full(30, 24), "loops": np.full(30, 24)})
    gained = {family: replay.accepted_lengths(made, acceptance.family_tree(family, 12, made, "d"), "d").mean()
              for family in ("optimal", "chain", "kary:2", "star")}
    assert max(gained, key=gained.get) == "optimal"
