"""Pictures of trees hold every node, in the colours of their roles, and the mask of the tree's forward pass."""

import re

import matplotlib
import numpy as np
import pytest
from bs4 import BeautifulSoup

from lib.lab import theme
from lib.trees import picture, shapes

matplotlib.use("agg")
TREE = shapes.expansion([2, 2, 1])


def test_a_round_is_drawn_in_the_colours_of_its_roles():
    drawn = picture.round_svg([-1, 0, 0, 0], ["root", "a", "b", "<c>"], ["root", "rejected", "rejected", "bonus"], {})
    seen = re.findall(r'fill="(#\w+)"/><text[^>]*>([^<]*)</text>', drawn)
    assert seen == [(theme.ROLES[role], token) for token, role in (
        ("root", "root"), ("a", "rejected"), ("b", "rejected"), ("&lt;c&gt;", "bonus"))]


def test_a_mask_is_the_trees_own_with_its_position_ids():
    """A marked row leaves the others pale."""
    drawn = BeautifulSoup(picture.mask_svg(TREE, 7, node=8), "html.parser")
    side = int(drawn.svg.rect["width"]) // TREE.size
    for node, row in enumerate(drawn.find_all("g")):
        keys = [int(corner) // side for corner in re.findall(r"M(\d+) ", row.path["d"])]
        assert sorted([*keys, node]) == np.flatnonzero(TREE.mask[node]).tolist()
        assert row.get("opacity") == (None if node == 8 else "0.3")
        assert row.find("text").string == str(7 + TREE.depth[node])


@pytest.mark.parametrize("tree", [shapes.chain(0), shapes.chain(64), shapes.star(64), shapes.kary(2, 5)])
def test_cards_and_galleries_hold_extreme_shapes(tree):
    card = BeautifulSoup(picture.card(tree, 128, node=tree.size - 1), "html.parser")
    assert len(card.find_all(class_="node")) == len(card.find_all("g", attrs={"data-row": True})) == tree.size
    assert [axis.get_title(loc="left") or axis.get_title() for axis in picture.gallery({"a": tree, "b": TREE}).axes] == [
        "a", "b"]
