"""A tree against the plainest definition of each of its parts; its refusals; the positions of drawn nodes."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.trees import NO_PARENT, Tree, named
from lib.trees.picture import positions


@st.composite
def drawn_parents(draw, most=24):
    size = draw(st.integers(1, most))
    return [NO_PARENT] + [draw(st.integers(0, node - 1)) for node in range(1, size)]


@st.composite
def drawn_trees(draw):
    """Any parents, with ranks that have gaps and need not follow the order of the nodes."""
    parents = draw(drawn_parents())
    free = {parent: draw(st.permutations(range(len(parents) + 3))) for parent in set(parents)}
    return Tree(parents, [0] + [free[parent].pop() for parent in parents[1:]])


def ancestors_by_walking(parents, node):
    path = [node]
    while parents[path[-1]] != NO_PARENT:
        path.append(parents[path[-1]])
    return tuple(reversed(path))


@settings(deadline=None, max_examples=150)
@given(drawn_parents())
def test_every_part_follows_from_walking_up_the_parents(parents):
    tree = Tree(parents)
    walks = [ancestors_by_walking(parents, node) for node in range(len(parents))]
    assert (tree.size, tree.budget) == (len(parents), len(parents) - 1)
    assert [tree.path(node) for node in range(tree.size)] == walks
    assert tree.depth.tolist() == [len(walk) - 1 for walk in walks]
    assert tree.max_depth == max(tree.depth)
    assert [set(np.flatnonzero(row)) for row in tree.mask] == [set(walk) for walk in walks]
    assert tree.leaves.tolist() == [node for node in range(tree.size) if node not in parents]
    assert tree.paths() == [walks[leaf] for leaf in tree.leaves]
    for node in range(tree.size):
        children = [child for child in range(tree.size) if parents[child] == node]
        assert list(tree.children(node)) == children
        assert tree.rank[children].tolist() == list(range(len(children)))


@settings(deadline=None, max_examples=150)
@given(drawn_trees(), st.randoms(use_true_random=False))
def test_choices_name_the_tree_whatever_their_order_and_children_stand_by_rank(tree, random):
    choices = tree.choices()
    again = Tree.from_choices(random.sample(choices, len(choices)))
    assert again.choices() == sorted(choices, key=lambda choice: (len(choice), choice))
    assert all((np.diff(tree.rank[list(tree.children(node))]) > 0).all() for node in range(tree.size))
    for twin in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree)), Tree(tree.parents, tree.rank)):
        assert twin == tree and hash(twin) == hash(tree)


def test_a_tree_is_its_parents_and_ranks_which_nothing_can_change():
    parents = np.array([-1, 0, 0])
    tree = Tree(parents)
    assert tree != "tree" and tree != Tree([-1, 0, 1]) and tree != Tree([-1, 0, 0], [0, 0, 2])
    parents[2] = 1
    assert tree.parents.tolist() == [-1, 0, 0], "the tree keeps its own copy"
    for array in (tree.parents, tree.rank, tree.depth, tree.mask, tree.leaves):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    with pytest.raises(AttributeError):
        tree.parents = parents


@pytest.mark.parametrize(("make", "parts", "message"), [
    (Tree, ([0, 0],), r"parents\[0\] is 0"),
    (Tree, ([-1, 0, 2],), r"parents\[2\] is 2: .* 0 to 1"),
    (Tree, ([-1, 0, -1],), r"parents\[2\] is -1"),
    (Tree, ([],), "parents has shape"),
    (Tree, ([[-1, 0]],), "parents has shape"),
    (Tree, ([-1, 0.5],), "parents has dtype float64"),
    (Tree, ([-1, 0, 0], [0, 1, 1]), r"rank\[2\] is 1, as is that of its sibling 1"),
    (Tree, ([-1, 0], [1, 0]), r"rank\[0\] is 1"),
    (Tree, ([-1, 0], [0, -1]), r"rank\[1\] is -1"),
    (Tree, ([-1, 0], [0]), "1 entries for 2 nodes"),
    (Tree.from_choices, ([(0,), (0,)],), r"\(0,\) is given twice"),
    (Tree.from_choices, ([(1, 0)],), r"\(1, 0\) has no parent: add \(1,\)"),
    (Tree.from_choices, ([()],), "is the root"),
])
def test_what_is_no_tree_is_named(make, parts, message):
    with pytest.raises(ValueError, match=message):
        make(*parts)


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
    ("chain:5", 0), ("star:5", 4), ("kary:2,3", 7), ("independent:4x8", 3), ("comb:3@6", 3),
])
def test_known_shapes_are_as_narrow_as_they_can_be(tree, width):
    assert positions(named(tree)).max() == pytest.approx(width)
