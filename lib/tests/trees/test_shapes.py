"""Shapes against their definitions, the two grown ones against brute force and against each other."""

from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.trees import shapes

probabilities = st.floats(0, 1, allow_subnormal=False)


@lru_cache
def all_ordered_trees(size, depth, most_children):
    """Every tree of `size` nodes whose children take the first ranks, as a tuple of the children's trees."""
    if size == 1:
        return [()]
    if depth == 0:
        return []
    return list(all_forests(size - 1, depth - 1, most_children, most_children))


@lru_cache
def all_forests(nodes, depth, free_ranks, most_children):
    if nodes == 0:
        return [()]
    if free_ranks == 0:
        return []
    return [(first, *rest) for size in range(1, nodes + 1) for first in all_ordered_trees(size, depth, most_children)
            for rest in all_forests(nodes - size, depth, free_ranks - 1, most_children)]


def expected_by_recursion(children, acceptance):
    return sum(acceptance[rank] * (1 + expected_by_recursion(child, acceptance)) for rank, child in enumerate(children))


@settings(deadline=None, max_examples=60)
@given(st.lists(probabilities, min_size=1, max_size=4), st.integers(0, 7), st.none() | st.integers(0, 4))
def test_optimal_is_the_best_of_all_trees(acceptance, budget, max_depth):
    depth = budget if max_depth is None else max_depth
    everything = all_ordered_trees(budget + 1, depth, len(acceptance))
    if not everything:
        with pytest.raises(ValueError, match=f"no tree of {budget} nodes"):
            shapes.optimal(acceptance, budget, max_depth)
        return
    tree = shapes.optimal(acceptance, budget, max_depth)
    best = max(expected_by_recursion(children, acceptance) for children in everything)
    assert tree.budget == budget and tree.max_depth <= depth
    assert all(tree.rank[list(tree.children(node))].tolist() == list(range(len(tree.children(node))))
               for node in range(tree.size)), "ranks have no gaps"
    assert shapes.expected_accepted(tree, acceptance) == pytest.approx(best)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(probabilities, min_size=2, max_size=2), min_size=1, max_size=3), st.integers(0, 5))
def test_sparse_is_the_best_of_all_sets_of_nodes_with_their_parents(acceptance, budget):
    depths = len(acceptance)
    paths = [path for depth in range(1, depths + 1) for path in np.ndindex(*[2] * depth)]
    if budget > len(paths):
        with pytest.raises(ValueError, match=f"budget {budget} is more than the {len(paths)} nodes"):
            shapes.sparse(acceptance, budget)
        return
    closed = [nodes for nodes in combinations(paths, budget) if all(len(p) == 1 or p[:-1] in nodes for p in nodes)]
    values = [sum(np.prod([acceptance[d][r] for d, r in enumerate(path)]) for path in nodes) for nodes in closed]
    tree = shapes.sparse(acceptance, budget)
    assert tree.budget == budget
    assert shapes.expected_accepted(tree, acceptance) == pytest.approx(max(values))


@settings(deadline=None, max_examples=60)
@given(st.floats(0.05, 0.95), st.integers(1, 20), st.integers(1, 8))
def test_expected_length_has_its_closed_forms(first, length, count):
    chain = shapes.expected_accepted(shapes.chain(length), [first])
    assert chain + 1 == pytest.approx((1 - first ** (length + 1)) / (1 - first)), "Leviathan et al. 2023, eq. 1"
    by_rank = [first * 0.5**rank for rank in range(8)]
    assert shapes.expected_accepted(shapes.star(count), by_rank) == pytest.approx(sum(by_rank[:count]))


@pytest.mark.parametrize(("acceptance", "message"), [
    ([], "shape"), ([0.5, 1.5], "holds 1.5"), ([-0.1], "holds -0.1"), ([float("nan")], "holds nan"), ([[0.5]], "shape"),
])
def test_what_is_no_acceptance_is_named(acceptance, message):
    with pytest.raises(ValueError, match=message):
        shapes.optimal(acceptance, 1)
