"""Every round is counted once and in its place, and trees grow from how often ranks were the target's."""

from dataclasses import replace

import numpy as np
import pytest

from lib import replay
from lib.replay import acceptance
from lib.tests.replay.test_replay import synthetic
from lib.trees import Tree, named


def recorded():
    labels = {"target": "t", "temperature": 0.0}
    return replace(synthetic(np.random.default_rng(0), rows=30, width=24), labels=labels)


@pytest.mark.parametrize("name", ["kary:2@14", "comb:3@12", "chain:8"])
def test_every_table_counts_each_round_once(name):
    """By prompt, by depth, by node, and by the quarter of the text in which it starts."""
    made, tree = recorded(), named(name)
    rounds = acceptance.rounds_of(made, tree, "d")
    table = acceptance.tally_walk(made, rounds)
    assert table["prompt"].tolist() == list(made.prompts), "prompts without a round have a row too"
    assert table["rounds"].tolist() == np.bincount(rounds.rows, minlength=30).tolist()
    assert table["accepted"].sum() == rounds.accepted.sum()
    assert (table["drafted"] == table["rounds"] * tree.budget).all()

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
    made = replace(recorded(), lengths=np.full(30, 24), tokens=np.zeros((30, 25), np.int32), ranks={
        "d": np.minimum(np.random.default_rng(1).geometric(0.5, (30, 24)) - 1, 9).astype(np.int32)})
    gained = {family: replay.accepted_lengths(made, acceptance.tree_of(f"{family}@12", made, "d"), "d").mean()
              for family in ("frequent", "optimal", "chain", "kary:2", "star")}
    assert sorted(gained, key=gained.get)[-2:] == ["optimal", "frequent"]
