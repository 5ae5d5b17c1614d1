"""What makes a drawn tree readable, on drawn trees."""

import numpy as np
import pytest
from hypothesis import given, settings

from lib.tests.trees.test_tree import drawn_trees
from lib.trees import named, shapes
from lib.trees.picture import positions


@settings(deadline=None, max_examples=150)
@given(drawn_trees())
def test_nodes_keep_apart_siblings_keep_order_and_parents_stand_midway(tree):
    across = positions(tree)
    assert across.min() == 0
    for depth in range(tree.max_depth + 1):
        level = np.sort(across[tree.depth == depth])
        assert (np.diff(level) >= 1 - 1e-9).all()
    for node in range(tree.size):
        children = across[list(tree.children(node))]
        assert (np.diff(children) > 0).all()
        if len(children):
            assert across[node] == pytest.approx((children[0] + children[-1]) / 2)


@pytest.mark.parametrize(("tree", "width"), [
    (shapes.chain(5), 0), (shapes.star(5), 4), (shapes.kary(2, 3), 7), (shapes.independent(4, 8), 3),
    (named("comb:3@6"), 3),
])
def test_known_shapes_are_as_narrow_as_they_can_be(tree, width):
    assert positions(tree).max() == pytest.approx(width)
