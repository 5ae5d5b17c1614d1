"""The fastest tree against brute force over all trees, and the choice that is judged on other prompts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay
from lib.cost import Curve, RoundCost, best_tree
from lib.cost.best_tree import Limits
from lib.replay import Trace
from lib.tests.replay.test_replay import synthetic
from lib.tests.replay.test_search import all_trees
from lib.trees import Tree


def cost(level=(0.2, 0.2), check=(1.0, 1.4)):
    """A round's cost with the drafter's level at widths 1 and 9, the check at 0 and 8 nodes."""
    return RoundCost(1.0, 0.05, Curve.through([1, 9], level), Curve.through([0, 8], check)).round


def brute_force(recorded, seconds, limits):
    """Tokens a second of the fastest of all trees within the limits, counted start by start."""
    trees = [Tree([-1]), *(tree for n in range(1, limits.nodes + 1) for tree in all_trees(n, 3, limits.depth))]
    return max((1 + replay.accepted_lengths(recorded, tree).mean()) / seconds(tree) for tree in trees)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.floats(0, 0.4), st.floats(1, 3))
def test_no_tree_is_faster_where_a_level_costs_the_same_at_any_width(seed, depth, level, last):
    recorded = synthetic(np.random.default_rng(seed), rows=4, width=12, ranks=3)
    if not recorded.positions:
        return
    seconds, limits = cost((level, level), (1.0, last)), Limits(4, depth)
    found = best_tree.best_on(recorded, seconds, limits)
    assert found.speed == pytest.approx(brute_force(recorded, seconds, limits))
    assert found.tokens == pytest.approx(1 + replay.accepted_lengths(recorded, found.tree).mean())
    assert found.tree.budget <= limits.nodes and found.tree.max_depth <= limits.depth


def test_where_width_costs_the_loss_against_all_trees_is_small():
    lost = []
    for seed in range(12):
        recorded = synthetic(np.random.default_rng(seed), rows=4, width=12, ranks=3)
        seconds, limits = cost((0.1, 1.2)), Limits(4, 3)
        fastest = brute_force(recorded, seconds, limits)
        found = best_tree.best_on(recorded, seconds, limits).speed
        assert found <= fastest * (1 + 1e-12)
        lost.append(1 - found / fastest)
    assert np.mean(lost) < 0.02


def test_a_dear_check_leaves_nothing_to_draft_and_a_free_one_takes_all():
    recorded = synthetic(np.random.default_rng(1), rows=6, width=20, ranks=3)
    assert best_tree.best_on(recorded, cost(check=(1.0, 60.0)), Limits(8, 3)).tree == Tree([-1])
    assert best_tree.best_on(recorded, cost((0, 0), (1.0, 1.0)), Limits(8, 3)).tree.budget == 8


def test_the_choice_is_judged_on_other_prompts_and_grown_on_all():
    recorded = synthetic(np.random.default_rng(2), rows=8, width=20, ranks=3)
    halves = best_tree.folds(recorded)
    assert [len(part.prompts) for part in halves[0]] == [4, 4]
    assert not set(halves[0][0].prompts) & set(halves[0][1].prompts)
    seconds = cost((0.02, 0.02), (1.0, 1.1))
    chosen, greedy = (choice(recorded, seconds, Limits(8, 4)) for choice in (best_tree.choose, best_tree.best_on))
    assert chosen.speed <= greedy.speed  # what is promised out of sample is no more than in sample
    each = best_tree.choose_each(recorded, seconds, Limits(8, 4))
    assert max(choice.speed for choice in each.values()) == chosen.speed
    assert all(choice.tree.budget == budget for budget, choice in each.items()) and set(range(9)) <= set(each)
    assert (1 + best_tree.mean_accepted(recorded, chosen.tree)) / seconds(chosen.tree) <= greedy.speed + 1e-12


def test_starts_within_a_loop_do_not_count():
    recorded = synthetic(np.random.default_rng(3), rows=3, width=15, ranks=2)
    looped = Trace(**{**vars(recorded), "loops": np.minimum(recorded.loops, 5)})
    tree = Tree.from_choices([(0,), (0, 0), (1,)])
    walked = replay.walk(looped, tree)
    kept = walked.accepted[walked.starts < looped.loops[walked.rows]]
    assert best_tree.mean_accepted(looped, tree) == pytest.approx(kept.mean())


def test_paths_of_limited_depth_are_the_most_frequent_of_that_depth():
    recorded = synthetic(np.random.default_rng(4), rows=6, width=24, ranks=2)
    everything = best_tree.most_frequent_paths(recorded, 500)
    shallow = [path for path, _ in everything if len(path) <= 2]
    assert best_tree.paths_within(recorded, Limits(5, 2)) == shallow[:5]
