"""Growth rules against plain ones: the heap, brute force over all trees, literal loops; and their names."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lib.trees import Tree, growth, shapes
from lib.trees.grown_shapes import best_first
from lib.trees.growth.rules import Auto, BestFirst, Costs, Smart

SEEDS = st.integers(0, 2**32 - 1)
VOCABULARY = 5


def path(candidates, node):
    """The ranks along the path from the root to a node."""
    ranks = []
    while node != 0:
        ranks.append(int(candidates.rank[node]))
        node = int(candidates.parents[node])
    return tuple(reversed(ranks))


def chances(seed: int, rank_path, coarse: bool = False) -> np.ndarray:
    """A node's children, best first: some distribution that depends on the whole path; coarse ones tie often."""
    rng = np.random.default_rng([seed, len(rank_path), *rank_path])
    weights = rng.integers(1, 4, VOCABULARY) if coarse else rng.exponential(1.0, VOCABULARY) ** 3
    return np.sort(weights / weights.sum())[::-1]


def level_by_level(rule, seed, coarse=False):
    """What a rule grows, and how many nodes each of its forwards took."""
    taken = []

    def children(candidates, nodes):
        taken.append(len(nodes))
        return np.stack([chances(seed, path(candidates, node), coarse) for node in nodes])

    return growth.grow(rule, children).tree, taken


def reach_of(tree: Tree, seed: int, coarse=False) -> float:
    """The sum of path products over the drafted nodes."""
    return sum(np.prod([chances(seed, choice[:depth], coarse)[choice[depth]] for depth in range(len(choice))])
               for choice in tree.choices())


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(0, 24), st.integers(1, 6), st.booleans())
def test_best_first_by_level_is_the_heap_node_by_node(seed, budget, depth, coarse):
    heap = best_first(partial(chances, seed, coarse=coarse), budget, depth)
    tree, taken = level_by_level(growth.parse(f"dyspec:{depth}@{budget}"), seed, coarse)
    assert tree == heap, "ties included"
    assert len(taken) <= min(depth, budget), "one forward a level"
    parents = len(set(tree.parents[1:].tolist()))
    assert sum(taken) >= parents
    wide, forwards = level_by_level(growth.parse(f"opttree:{max(budget, 1)},{depth}@{budget}"), seed, coarse)
    assert wide == heap and sum(forwards) >= sum(taken), "OPT-Tree of delta 0 expands more for the same tree"


@settings(deadline=None, max_examples=15)
@given(SEEDS)
def test_no_tree_of_so_many_nodes_reaches_more_than_the_best_first_one(seed):
    def every_tree(tree, budget):
        """All trees of `budget` nodes, ranks up to 2, by adding one node after another."""
        if len(tree) == budget:
            yield tree
            return
        for parent in [(), *sorted(tree)]:
            for rank in range(3):
                if parent + (rank,) not in tree:
                    yield from every_tree(tree | {parent + (rank,)}, budget)

    tree, _ = level_by_level(growth.parse("dyspec@3"), seed)
    most = max(reach_of(Tree.from_choices(other), seed) for other in set(every_tree(frozenset(), 3)))
    assert reach_of(tree, seed) == pytest.approx(most)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 4), st.integers(1, 5), st.integers(1, 40))
def test_eagle_expands_the_best_of_a_level_and_reranks_all(seed, width, depth, budget):
    level, everything = [((), 1.0)], []
    for _ in range(min(depth, budget)):  # by the book: sorted lists of (path, reach)
        level = [(node + (rank,), reach * chance) for node, reach in level
                 for rank, chance in enumerate(chances(seed, node)[:width])]
        everything += level
        level = sorted(level, key=lambda item: (-item[1], item[0]))[:width]
    kept = sorted(everything, key=lambda item: (-item[1], len(item[0]), item[0]))[:budget]

    def children(candidates, nodes):
        return np.stack([chances(seed, path(candidates, node))[:width] for node in nodes])

    rule = growth.parse(f"eagle2:{width},{depth}@{budget}")
    assert growth.grow(rule, children).tree == Tree.from_choices(node for node, _ in kept)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 4), st.integers(0, 17))
def test_a_beam_keeps_the_best_paths_of_every_level(seed, width, budget):
    tree, taken = level_by_level(growth.parse(f"beam:{width}@{budget}"), seed)
    beam, found = [((), 1.0)], []
    while len(found) < budget:
        paths = [(node + (rank,), reach * chance) for node, reach in beam
                 for rank, chance in enumerate(chances(seed, node))]
        beam = sorted(paths, key=lambda item: -item[1])[: min(width, budget - len(found))]
        found += [node for node, _ in beam]
    assert tree == Tree.from_choices(found) and tree.budget == budget
    assert len(taken) == -(-budget // width)


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(1, 4), st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]), st.integers(0, 14))
@example(0, 2, 0.5, 8)
def test_a_fork_follows_favourites_and_branches_once(seed, branches, certain, budget):
    tree, taken = level_by_level(growth.parse(f"fork:{branches},{certain}@{budget}"), seed)
    trunk = ()
    while len(trunk) < budget and chances(seed, trunk)[0] >= certain:
        trunk += (0,)
    found = [trunk[: depth + 1] for depth in range(len(trunk))]
    level = [trunk + (rank,) for rank in range(branches)]
    reach = {node: np.prod([chances(seed, node[:depth])[rank] for depth, rank in enumerate(node)]) for node in level}
    while len(found) < budget:
        level = sorted(level, key=lambda node: -reach[node])[: budget - len(found)]
        found += level
        below = [node + (0,) for node in level[: budget - len(found)]]  # the likeliest go on, where not all can
        reach = {node: reach[node[:-1]] * chances(seed, node[:-1])[0] for node in below}
        level = below
    assert tree == Tree.from_choices(found) and tree.budget == budget
    assert len(taken) == tree.max_depth, "no level is drafted in vain"


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.floats(0.01, 1.0), st.integers(1, 20))
def test_optree_stops_where_a_level_gains_too_little(seed, delta, budget):
    full, _ = level_by_level(growth.parse(f"opttree@{budget}"), seed)
    rule = growth.OptTree(budget, 16, budget, delta)
    tree, taken = level_by_level(rule, seed)
    sums = [reach_of(best_first(partial(chances, seed), budget, depth), seed) for depth in range(1, len(taken) + 1)]
    gains = np.diff([0.0, *sums])
    assert (gains[:-1] > delta).all(), "every level but the last was worth another"
    assert gains[-1] <= delta or len(taken) == min(16, budget) or tree == full
    assert reach_of(tree, seed) <= reach_of(full, seed) + 1e-12


# -------------------------------------------------------------------------------------------------------------- costs


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.floats(0.0, 0.5), st.floats(0.005, 0.5))
def test_the_marginal_rule_keeps_nodes_while_each_makes_a_round_faster(seed, draft, slope):
    rng = np.random.default_rng(seed)
    costs = Costs(tuple(1 + np.cumsum(np.sort(rng.uniform(0, slope, 31)))), draft)  # convex: dearer node by node
    gains = np.sort(rng.uniform(0, 1, 30))[::-1]
    count, speed = costs.best_prefix(gains, 0, 1.0, 2)
    expected, tokens, seconds = 0, 1.0, 2 * draft + costs.target[0]
    while expected < 30:  # the rule as it is written: benefit over cost against the present speed
        dearer = costs.target[expected + 1] - costs.target[expected]
        if gains[expected] / dearer <= tokens / seconds:
            break
        tokens, seconds, expected = tokens + gains[expected], seconds + dearer, expected + 1
    assert count == expected and speed == pytest.approx(tokens / seconds)


def test_a_free_tree_is_the_best_first_one_and_a_dear_one_stays_at_its_root():
    free = Costs((1.0,) * 25, 0.0)
    for seed in range(5):
        tree, _ = level_by_level(growth.parse("smart:6@24", costs=free), seed)
        assert reach_of(tree, seed) <= reach_of(best_first(partial(chances, seed), 24, 6), seed) + 1e-12
        assert tree.budget == 24
        steep = Costs(tuple(1.0 + 9 * n for n in range(25)), 1.0)
        dear, taken = level_by_level(growth.parse("smart@24", costs=steep), seed)
        assert dear.budget == 0 and taken == [1], "the first forward tells that nothing pays"
        chain, _ = level_by_level(growth.parse("smart:6@24", costs=Costs((1.0, 1.0, *[99.0] * 23), 0.0)), seed)
        assert chain == shapes.chain(1), "a step in the costs is not worth climbing"


def test_dearer_nodes_and_dearer_levels_give_smaller_trees():
    def size(slope, draft):
        costs = Costs(tuple(1 + slope * n for n in range(33)), draft)
        grown = [level_by_level(Smart(16, 32, costs), seed)[0] for seed in range(8)]
        return sum(tree.budget for tree in grown), sum(tree.max_depth for tree in grown)

    assert size(0.01, 0.05)[0] > size(0.05, 0.05)[0] > size(0.2, 0.05)[0]
    assert size(0.02, 0.0)[1] > size(0.02, 0.1)[1] > size(0.02, 0.6)[1]


def rising(seed, nodes):
    """Costs that do not fall, with steps where a node more costs much."""
    steps = np.random.default_rng(seed).exponential(1.0, nodes) ** 3 * 0.1
    return Costs((1.0, *(1 + np.cumsum(steps)).tolist()), 0.1)


def grown_candidates(rule, seed):
    """All candidates that a rule looked at."""
    seen = []

    def children(candidates, nodes):
        probs = np.stack([chances(seed, path(candidates, node)) for node in nodes])
        seen.append(candidates.with_children(nodes, probs))
        return probs

    growth.grow(rule, children)
    return seen[-1]


@settings(deadline=None, max_examples=40)
@given(st.lists(SEEDS, min_size=1, max_size=3), SEEDS, st.integers(1, 12))
def test_an_automatic_budget_is_the_fastest_of_all(seeds, cost_seed, most):
    """Against brute force over all numbers of nodes, the same for all rows of a batch."""
    costs = rising(cost_seed, most)
    rule = growth.parse("dyspec:4@auto", costs=costs)
    rows = [grown_candidates(rule.rule, seed) for seed in seeds]
    levels = max(int(candidates.depth[-1]) for candidates in rows)
    speeds = [sum(1 + reach_of(best_first(partial(chances, seed), n, 4), seed) for seed in seeds) /
              (costs.target[n] + levels * costs.draft) for n in range(most + 1)]
    kept = rule.keep_all(rows)
    assert len(set(map(len, kept))) == 1 and speeds[len(kept[0])] == pytest.approx(max(speeds))
    for candidates, nodes, seed in zip(rows, kept, seeds):
        assert candidates.tree(nodes).tree == best_first(partial(chances, seed), len(nodes), 4)
    seen = grown_candidates(rule, seeds[0])
    assert level_by_level(rule, seeds[0])[0] == seen.tree(rule.keep(seen)).tree


@settings(deadline=None, max_examples=60)
@given(SEEDS, SEEDS, st.floats(0.0, 1.0), st.sampled_from(["dyspec:6", "eagle2:3,6", "opttree:3,6"]))
def test_an_automatic_budget_refuses_no_level_that_pays(seed, cost_seed, draft, name):
    """Against the same growth with one level more; where levels are dear, the first alone is drafted."""
    costs = replace(rising(cost_seed, 16), draft=draft)
    rule = growth.parse(f"{name}@auto", costs=costs)

    def fastest(candidates):
        gains = candidates.reach[candidates.best(16)]
        return costs.best_prefix(gains, 0, 1.0, int(candidates.depth[-1]))[1]

    seen = grown_candidates(rule, seed)
    further = grown_candidates(rule.rule.at_most(int(seen.depth[-1]) + 1), seed)
    assert fastest(further) <= fastest(seen) * (1 + 1e-12)
    dear = Auto(rule.rule, replace(costs, draft=1e6))
    assert grown_candidates(dear, seed).depth[-1] == 1


@pytest.mark.parametrize("name", ["dyspec@auto", "eagle2:4,6@auto", "opttree:4,6,0.1@auto", "dyspec:3@auto"])
def test_an_automatic_budget_grows_as_its_rule_does(name):
    costs = rising(0, 16)
    rule, known = growth.parse(name, costs=costs), growth.parse(name.replace("auto", "16"))
    assert rule.name == known.name.replace("@16", "@auto") and rule.budget == 16
    assert rule.at_most(2).max_depth == 2
    for seed in range(4):
        (tree, taken), (whole, all_taken) = level_by_level(rule, seed), level_by_level(known, seed)
        assert taken == all_taken[: len(taken)] and set(tree.choices()) <= set(whole.choices())


@pytest.mark.parametrize("target, draft", [((1.0,), 0.0), ((1.0, 0.5), 0.0), ((0.0, 1.0), 0.0), ((1.0, 2.0), -1.0),
                                           ((1.0, np.nan), 0.0), ((1.0, 2.0), np.inf)])
def test_costs_that_cannot_be_are_refused(target, draft):
    with pytest.raises(ValueError, match="positive times for 0, 1, 2, ... draft nodes"):
        Costs(target, draft)


# ---------------------------------------------------------------------------------------------------------- marginals


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(0, 30), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_over_marginals_best_first_growth_takes_the_nodes_of_the_heap(seed, budget, depths, ranks, coarse):
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 4, (depths, ranks)) if coarse else rng.exponential(1.0, (depths, ranks))
    marginals = np.sort(weights / weights.sum(1, keepdims=True), axis=1)[:, ::-1]
    by_level = growth.grow(BestFirst(depths, budget, "ddtree"), lambda candidates, nodes: np.tile(
        marginals[candidates.depth[-1]], (len(nodes), 1)))
    assert by_level.tree == best_first(lambda node: marginals[len(node)], budget, depths)


# -------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["eagle2:4,6@32", "opttree:8,6@64", "opttree:8,6,0.25@64", "dyspec:7@32", "beam:4@30",
                                  "ddtree:4@9", "fork:2,0.7,5@8"])
def test_a_rule_is_what_its_name_says(name):
    rule = growth.parse(name)
    assert rule.name == name and growth.parse(rule.name) == rule and growth.parse(rule) is rule
    assert growth.shape_or_growth(name) == rule == growth.at_budget(*_parts(name))


def _parts(name):
    family, _, budget = name.partition("@")
    return family, int(budget)


def test_what_a_name_leaves_out_has_defaults():
    assert growth.parse("opttree@32") == growth.OptTree(32, 16, 32)
    assert growth.parse("dyspec@8") == growth.BestFirst(8, 8)
    assert growth.shape_or_growth("kary:2@6") == shapes.parse("kary:2@6")
    assert growth.shape_or_growth(shapes.star(2)) == shapes.star(2)


@pytest.mark.parametrize("name, message", [("eagle3:4,6@32", "growth rule 'eagle3:4,6' is unknown.*eagle2:4,6@32"),
                                           ("eagle2@32", "'eagle2@32' is not complete.*eagle2:4,6@32"),
                                           ("beam:2,3@32", "'beam:2,3@32' is not complete"),
                                           ("dyspec", "'dyspec' is not complete"), ("beam:x@4", "has numbers 'x'"),
                                           ("beam:inf@4", "has numbers 'inf'"),
                                           ("opttree:4,4,nan@4", "has numbers '4,4,nan'"),
                                           ("beam:2.5@4", "width is 2.5"), ("smart@16", "needs costs: pass"),
                                           ("dyspec@auto", "needs costs: pass"), ("beam:2@auto", "is not complete")])
def test_a_name_that_says_nothing_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        growth.parse(name)


def test_neither_shape_nor_rule():
    with pytest.raises(ValueError, match="neither a shape \\(chain.*nor a growth rule \\(eagle2"):
        growth.shape_or_growth("tree:4@3")
    for wrong in (None, 5, [-1, 0, 0]):
        with pytest.raises(ValueError, match="give a name such as 'kary:2@16', a Tree, or a growth rule"):
            growth.shape_or_growth(wrong)
    with pytest.raises(ValueError, match="the costs cover 4 draft nodes, the budget is 8"):
        growth.parse("smart@8", costs=Costs((1.0,) * 5, 0.1))
