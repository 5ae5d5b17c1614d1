"""Explorers without a browser: a control is moved, and what is shown must follow."""

import matplotlib
import pytest

from lib import shapes
from lib.widgets.shape_explorer import ShapeExplorer

matplotlib.use("agg")
ACCEPTANCE = [0.6, 0.2, 0.1]


@pytest.fixture
def explorer():
    return ShapeExplorer(ACCEPTANCE, family="kary:2", budget=6, max_budget=32, prefix_length=10)


@pytest.mark.parametrize(("control", "value"), [("family", "chain"), ("budget", 9), ("prefix_length", 99), ("node", 4)])
def test_every_control_changes_the_picture(explorer, control, value):
    before = bytes(explorer.picture.value)
    getattr(explorer, control).value = value
    after = bytes(explorer.picture.value)
    assert after != before and after.startswith(b"\x89PNG")


def test_tree_and_numbers_follow_the_controls(explorer):
    assert explorer.tree == shapes.kary(2, 2) and "6 nodes, depth 2, 4 leaves" in explorer.numbers.value
    explorer.family.value, explorer.budget.value = "optimal", 9
    assert explorer.tree == shapes.optimal(ACCEPTANCE, 9)
    assert f"{shapes.expected_accepted(explorer.tree, ACCEPTANCE):.2f} accepted" in explorer.numbers.value
    explorer.node.value = 3
    seen = ", ".join(map(str, explorer.tree.path(3)))
    assert f"sees the prefix and nodes {seen}" in explorer.numbers.value
    assert f"= {10 + explorer.tree.depth[3]}," in explorer.numbers.value


def test_the_figure_is_the_one_that_the_notebook_shows_statically(explorer):
    left, right = explorer.figure().axes
    assert left.get_title(loc="left") + left.get_title() == "kary:2@6"
    assert left.get_ylabel() == "position id = 10 + depth"
    assert "who attends" in (right.get_title(loc="left") + right.get_title())


def test_a_smaller_budget_keeps_the_node_inside_the_tree(explorer):
    explorer.node.value = 6
    explorer.budget.value = 2
    assert (explorer.node.max, explorer.node.value) == (2, 2)
    explorer.budget.value = 0
    assert explorer.node.value == 0 and "0 nodes" in explorer.numbers.value


def test_an_explorer_opens_on_the_last_of_the_families_that_it_is_given():
    assert ShapeExplorer(ACCEPTANCE, families=["chain", "kary:4"], budget=4).tree == shapes.star(4)


def test_explorers_leave_no_open_figures(explorer):
    matplotlib.pyplot.close("all")
    for budget in range(1, 6):
        explorer.budget.value = budget
    assert not matplotlib.pyplot.get_fignums()
