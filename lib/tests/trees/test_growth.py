"""Growth rules against plain ones: the heap, brute force over all trees, literal loops."""

import heapq
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.trees import Tree, named, shapes
from lib.trees.growth import BestFirst, Costs, grow

SEEDS = st.integers(0, 2**32 - 1)
VOCABULARY = 5


def path(candidates, node):
    """The ranks along the path from the root to a node."""
    return (*path(candidates, candidates.parents[node]), int(candidates.rank[node])) if node else ()


def chances(seed: int, rank_path, coarse: bool = False) -> np.ndarray:
    """A node's children, best first: some distribution that depends on the whole path; coarse ones tie often."""
    rng = np.random.default_rng([seed, len(rank_path), *rank_path])
    weights = rng.integers(1, 4, VOCABULARY) if coarse else rng.exponential(1.0, VOCABULARY) ** 3
    return np.sort(weights / weights.sum())[::-1]


def level_by_level(rule, seed, coarse=False):
    """What a rule grows, and how many nodes each of its forwards took. The last node of a full tree is not among them:
    none of its children could enter.
    """
    taken = []

    def children(candidates, nodes):
        taken.append(len(nodes))
        if rule.name.startswith("dyspec") and len(candidates.reach) > rule.budget:
            assert candidates.best(rule.budget)[-1] not in nodes
        return np.stack([chances(seed, path(candidates, node), coarse)[: rule.width] for node in nodes])

    return grow(rule, children).tree, taken


def reach_of(tree: Tree, seed: int, coarse=False) -> float:
    """The sum of path products over the drafted nodes."""
    return sum(np.prod([chances(seed, choice[:depth], coarse)[choice[depth]] for depth in range(len(choice))])
               for choice in tree.choices())


def best_first(children, budget: int, max_depth: int) -> Tree:
    """The nodes of largest product of probabilities along the path, one node at a time from a heap.

    children(path): the probabilities of the node's children by rank. Ties go to the shallower node, then to the better
    ranks.
    """
    chosen, frontier = [], []

    def offer_children(path, product):
        if len(path) < max_depth:
            for rank, probability in enumerate(children(path)):
                heapq.heappush(frontier, (-product * probability, len(path) + 1, path + (rank,)))

    offer_children((), 1.0)
    while frontier and len(chosen) < budget:
        negative_product, _, path = heapq.heappop(frontier)
        chosen.append(path)
        offer_children(path, -negative_product)
    return Tree.from_choices(chosen)


@settings(deadline=None, max_examples=80)
@given(SEEDS, st.integers(0, 24), st.integers(1, 6), st.booleans(), st.booleans())
def test_best_first_by_level_is_the_heap_node_by_node(seed, budget, depth, coarse, by_depth):
    """Over distributions of each node, and over one for all nodes of a depth."""
    of_node = partial(chances, seed, coarse=coarse)
    heap = best_first((lambda node: of_node((0,) * len(node))) if by_depth else of_node, budget, depth)
    if by_depth:
        assert heap == grow(named(f"ddtree:{depth}@{budget}"), lambda candidates, nodes: np.tile(
            of_node((0,) * candidates.levels), (len(nodes), 1))).tree
        return
    tree, taken = level_by_level(named(f"dyspec:{depth}@{budget}"), seed, coarse)
    assert tree == heap, "ties included"
    assert tree.budget == min(budget, sum(VOCABULARY**level for level in range(1, depth + 1)))
    assert len(taken) <= min(depth, budget), "one forward a level"
    parents = len(set(tree.parents[1:].tolist()))
    assert sum(taken) >= parents
    wide, _ = level_by_level(named(f"opttree:{max(budget, 1)},{depth}@{budget}"), seed, coarse)
    assert wide == heap, "a delta of 0 stops where nothing can be gained"


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
    tree, _ = level_by_level(named(f"eagle2:{width},{depth}@{budget}"), seed)
    assert tree == Tree.from_choices(node for node, _ in kept)


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.floats(0.01, 1.0), st.integers(1, 20))
def test_optree_stops_where_a_level_gains_too_little(seed, delta, budget):
    full, _ = level_by_level(named(f"opttree@{budget}"), seed)
    tree, taken = level_by_level(BestFirst(budget, family="opttree", level_width=budget, delta=delta), seed)
    sums = [reach_of(best_first(partial(chances, seed), budget, depth), seed) for depth in range(1, len(taken) + 1)]
    gains = np.diff([0.0, *sums])
    assert (gains[:-1] > delta).all(), "every level but the last was worth another"
    assert gains[-1] <= delta or len(taken) == min(16, budget) or tree == full
    assert reach_of(tree, seed) <= reach_of(full, seed) + 1e-12


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.floats(0.0, 0.5), st.floats(0.005, 0.5))
def test_the_marginal_rule_keeps_nodes_while_each_makes_a_round_faster(seed, draft, slope):
    rng = np.random.default_rng(seed)
    costs = Costs(tuple(1 + np.cumsum(np.sort(rng.uniform(0, slope, 31)))), draft)  # convex: dearer node by node
    gains = np.sort(rng.uniform(0, 1, 30))[::-1]
    speeds = costs.speeds(gains, 2)
    expected, tokens, seconds = 0, 1.0, 2 * draft + costs.target[0]
    while expected < 30:  # the rule as it is written: benefit over cost against the present speed
        dearer = costs.target[expected + 1] - costs.target[expected]
        if gains[expected] / dearer <= tokens / seconds:
            break
        tokens, seconds, expected = tokens + gains[expected], seconds + dearer, expected + 1
    assert speeds.argmax() == expected and speeds.max() == pytest.approx(tokens / seconds)


def test_a_free_tree_is_the_best_first_one_and_a_dear_one_stays_at_its_root():
    free, steep = Costs((1.0,) * 25, 0.0), Costs(tuple(1.0 + 9 * n for n in range(25)), 1.0)
    step = Costs((1.0, 1.0, *[99.0] * 23), 0.0)
    for seed in range(5):
        tree, _ = level_by_level(named("smart:6@24", costs=free), seed)
        assert tree.budget == 24
        assert reach_of(tree, seed) <= reach_of(best_first(partial(chances, seed), 24, 6), seed) + 1e-12
        dear, taken = level_by_level(named("smart@24", costs=steep), seed)
        assert dear.budget == 0 and taken == [1], "the first forward tells that nothing pays"
        chain, _ = level_by_level(named("smart:6@24", costs=step), seed)
        assert chain == shapes.chain(1), "a step in the costs is not worth climbing"


@pytest.mark.parametrize("target, draft", [((1.0,), 0.0), ((1.0, 0.5), 0.0), ((0.0, 1.0), 0.0), ((1.0, 2.0), -1.0),
                                           ((1.0, np.nan), 0.0), ((1.0, 2.0), np.inf)])
def test_costs_that_cannot_be_are_refused(target, draft):
    with pytest.raises(ValueError, match="positive times for 0, 1, 2, ... draft nodes"):
        Costs(target, draft)
