"""Every round is counted once and in its place, and rounds that start before the limit, decided to their ends, give the
known mean of a process within its interval.
"""

from dataclasses import replace

import numpy as np
import pytest

from lib import replay
from lib.lab import stats
from lib.replay import acceptance
from lib.tests.replay.test_replay import synthetic
from lib.trees import Tree, named, shapes

LABELS = {"target": "t", "temperature": 0.0}
AGREES, DEPTH, LIMIT, ROWS = 0.7, 8, 48, 4000  # the drafter's favourite is the target's token so often, independently
TRUE = sum(AGREES**depth for depth in range(1, DEPTH + 1))  # 2.199
CHAIN = shapes.chain(DEPTH)


def recorded(seed=0):
    return replace(synthetic(np.random.default_rng(seed), rows=30, width=24), labels=LABELS)


def of_ranks(ranks):
    """A trace of these ranks int[N, L], without ends."""
    ranks = np.asarray(ranks, dtype=np.int32)
    rows, width = ranks.shape
    made, full = synthetic(np.random.default_rng(0), rows=rows, width=width), np.full(rows, width)
    return replace(made, ranks={"d": ranks}, tokens=np.zeros((rows, width + 1), np.int32), lengths=full,
                   labels=LABELS)


@pytest.mark.parametrize("name", ["kary:2@14", "comb:3@12", f"chain:{DEPTH}"])
def test_every_table_counts_each_round_once(name):
    """By prompt, by depth, by node, and by the quarter of the text in which it starts."""
    made, tree = recorded(), named(name)
    rounds = acceptance.rounds_of(made, tree, "d")
    table = acceptance.tally_walk(made, rounds)
    assert table["prompt"].tolist() == list(made.prompts), "prompts without a round have a row too"
    assert table["rounds"].tolist() == np.bincount(rounds.rows, minlength=30).tolist()
    assert table["accepted"].sum() == rounds.accepted.sum() and (table["drafted"] == table["rounds"] * tree.budget).all()

    wide = acceptance.by_depth(made, tree, rounds).groupby("depth")[["rounds", "reached", "accepted"]].sum()
    assert wide["accepted"].sum() == table["accepted"].sum()
    assert wide.loc[1, "reached"] == wide.loc[1, "rounds"]  # every round is at the root, which has children
    assert (wide["accepted"] <= wide["reached"]).all()
    assert (wide["reached"].to_numpy()[1:] <= wide["accepted"].to_numpy()[:-1]).all()

    nodes = acceptance.by_node(tree, rounds)
    assert nodes["accepted"].sum() == table["accepted"].sum()
    assert Tree.from_choices(tuple(map(int, path.split("."))) for path in nodes["path"]) == tree, "rows by node"
    for node in range(1, tree.size):
        assert nodes["accepted"][node - 1] >= nodes["accepted"][[child - 1 for child in tree.children(node)]].sum()

    quarters = acceptance.by_quarter(made, rounds)
    for column in ("rounds", "accepted"):
        assert quarters.groupby("prompt")[column].sum()[table["prompt"]].tolist() == table[column].tolist()
    first = (rounds.starts < np.ceil(made.lengths[rounds.rows] / 4)).sum()
    assert quarters.loc[quarters["quarter"] == 1, "rounds"].sum() == first and set(quarters["quarter"]) == {1, 2, 3, 4}


def test_acceptance_by_rank_counts_positions_before_the_limit():
    made = synthetic(np.random.default_rng(0), rows=30, width=24, ranks=20, beyond=5)
    ranks = np.concatenate([made.ranks["d"][i, : made.lengths[i]] for i in range(30)])
    by_rank = acceptance.acceptance_by_rank(made, "d")
    assert by_rank == pytest.approx(np.bincount(ranks)[:16] / len(ranks))
    counts = acceptance.by_rank(made, "d").groupby("rank")[["positions", "count"]].sum()
    assert (counts["positions"] == len(ranks)).all() and counts["count"].sum() == len(ranks)
    assert counts.loc[16, "count"] == (ranks >= 16).sum()
    by_depth = acceptance.acceptance_by_depth_and_rank(made, "d")
    assert by_depth[0] == pytest.approx(by_rank) and by_depth.shape == (64, 16)


def test_grown_trees_gain_the_most_on_what_they_were_grown_from():
    made = of_ranks(np.minimum(np.random.default_rng(1).geometric(0.5, (30, 24)) - 1, 9))
    gained = {family: replay.accepted_lengths(made, acceptance.tree_of(f"{family}@12", made, "d"), "d").mean()
              for family in ("frequent", "optimal", "chain", "kary:2", "star")}
    assert sorted(gained, key=gained.get)[-2:] == ["optimal", "frequent"]


def agreeing(beyond):
    """Texts of LIMIT transitions and some beyond; rank 0 where the drafter agrees."""
    made = of_ranks(np.random.default_rng(0).random((ROWS, LIMIT + beyond)) >= AGREES)
    return replace(made, lengths=np.full(ROWS, LIMIT), ended=np.zeros(ROWS, bool))


@pytest.mark.parametrize("beyond", [DEPTH + 1, 0], ids=["decided past the limit", "a log that ends"])
def test_counted_rounds_recover_the_mean(beyond):
    made = agreeing(beyond)
    rows = acceptance.tally_walk(made, acceptance.rounds_of(made, CHAIN, "d"))
    mean = stats.ratio(rows["accepted"], rows["rounds"], np.random.default_rng(1))
    assert mean.low < TRUE < mean.high and mean.high - mean.low < 0.06


def test_a_text_that_eos_ends_counts_as_it_stands():
    """Rounds then end where the text does: they are what a user gets, and no later token would have been written."""
    made = agreeing(0)
    walk = acceptance.rounds_of(replace(made, ended=np.ones(ROWS, bool)), CHAIN, "d")
    assert (walk.starts + walk.accepted <= LIMIT).all() and (walk.starts + DEPTH > LIMIT).any()
    decided = acceptance.rounds_of(made, CHAIN, "d")
    assert (decided.starts + DEPTH + 1 <= LIMIT).all()
