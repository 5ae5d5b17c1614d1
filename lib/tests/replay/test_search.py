"""The most frequent rank paths against brute force over all trees, and what the argument rests on."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay
from lib.replay import rank_paths
from lib.tests.replay.test_replay import synthetic
from lib.trees import Tree, shapes


def all_trees(budget, ranks, depth):
    """Every tree of so many nodes with ranks below `ranks` and at most that depth."""
    paths = [path for length in range(1, depth + 1) for path in itertools.product(range(ranks), repeat=length)]
    for chosen in itertools.combinations(paths, budget):
        if all(path[:-1] == () or path[:-1] in chosen for path in chosen):
            yield Tree.from_choices(chosen)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_no_tree_gains_more_on_the_trace(seed, budget):
    made = synthetic(np.random.default_rng(seed), rows=3, width=10, ranks=3)
    made = replay.Trace(
        **{**vars(made), "ranks": {"d": np.where(made.ranks["d"] == 2, 5, made.ranks["d"])}}
    )  # ranks with a gap
    best = max((
                   replay.accepted_lengths(
                       made, Tree.from_choices([tuple(5 if r == 2 else r for r in path) for path in tree.choices()])
                   ).sum()
                   for tree in all_trees(budget, 3, 3)
               ),
               default=0)
    # deeper trees than brute force visits can only be better
    own = replay.accepted_lengths(made, rank_paths.frequent(made, budget)).sum()
    assert own >= best
    assert own == sum(count for _, count in rank_paths.most_frequent_paths(made, budget))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_trees_of_all_budgets_are_nested_and_beat_every_family(seed):
    made = synthetic(np.random.default_rng(seed), rows=6, width=20, ranks=4)
    grown = [rank_paths.frequent(made, budget) for budget in (1, 2, 5, 12)]
    assert all(set(small.choices()) <= set(large.choices()) for small, large in zip(grown, grown[1:]))
    assert [tree.budget for tree in grown] == [1, 2, 5, 12]
    for family in ("chain", "kary:2", "comb:3", "star"):
        rival = shapes.at_budget(family, 12)
        assert replay.accepted_lengths(made, grown[-1]).sum() >= replay.accepted_lengths(made, rival).sum()


def test_an_empty_trace_gives_a_chain():
    made = synthetic(np.random.default_rng(0), rows=2, width=4)
    empty = replay.Trace(**{**vars(made), "lengths": np.zeros(2, int), "loops": np.zeros(2, int)})
    assert rank_paths.frequent(empty, 3) == shapes.chain(3)


def test_uniform_starts_are_a_condition():
    ranks = np.tile([0, 0, 1], 40)[None].astype(np.int32)
    made = replay.Trace(**{**vars(synthetic(np.random.default_rng(0), rows=1, width=120)), "ranks": {"d": ranks},
                           "tokens": np.zeros((1, 121), np.int32), "lengths": np.array([120]),
                           "loops": np.array([120])})
    counts = dict(rank_paths.most_frequent_paths(made, 3))
    assert counts[(0,)] == 80 and counts[(0, 0)] == pytest.approx(
        counts[(1,)], abs=1
    )  # a tie that chained rounds would break
