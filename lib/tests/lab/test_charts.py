"""What figures say: everything asked for is drawn, nothing else, and wrong input is named."""

import io
import re

import matplotlib
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lib.lab import charts, theme
from lib.lab.theme import STYLES, styles_of
from lib.trees import named, picture, shapes
from lib.trees.names import COMPARED

matplotlib.use("agg")
TREE = shapes.expansion([2, 2, 1])


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def test_every_strategy_has_a_style_of_its_own():
    """Also names without one, which get distinct ones in the order given; a budget does not change a strategy."""
    looks = {(style.colour, style.marker) for style in styles_of(COMPARED).values()}
    assert len(looks) == len(COMPARED)
    assert styles_of(["optimal@32", "kary:7"]) == {"optimal@32": STYLES["optimal"], "kary:7": STYLES["kary"]}
    names = [f"drafter {number}" for number in range(24)]
    styles = styles_of(["chain", *names])
    assert len({(styles[name].colour, styles[name].marker) for name in names}) == 24
    assert len({(styles[name].colour, styles[name].dash) for name in names[:16]}) == 16
    assert styles_of(names)["drafter 3"] == styles["drafter 3"]


def test_a_round_is_drawn_in_the_colours_of_its_roles():
    """The bonus token is a node after the accepted path, at the root where nothing is accepted."""
    drawn = picture.round_svg([-1, 0, 0, 0], ["root", "a", "b", "<c>"], ["root", "rejected", "rejected", "bonus"], {})
    seen = re.findall(r'fill="(#\w+)"/><text[^>]*>([^<]*)</text>', drawn)
    assert seen == [(theme.ROLES[role], token) for token, role in (
        ("root", "root"), ("a", "rejected"), ("b", "rejected"), ("&lt;c&gt;", "bonus"))]


def test_a_mask_is_the_trees_own_with_its_position_ids():
    """A marked row leaves the others pale."""
    drawn = BeautifulSoup(picture.mask_svg(TREE, 7, node=8), "html.parser")
    side = int(drawn.svg.rect["width"]) // TREE.size
    for node, row in enumerate(drawn.find_all("g")):
        keys = [int(place) // side for place in re.findall(r"M(\d+) ", row.path["d"])]
        assert sorted([*keys, node]) == np.flatnonzero(TREE.mask[node]).tolist()
        assert row.get("opacity") == (None if node == 8 else "0.3")
        assert row.find("text").string == str(7 + TREE.depth[node])


@pytest.mark.parametrize("tree", [shapes.chain(0), shapes.chain(64), shapes.star(64), shapes.kary(2, 5)])
def test_cards_and_galleries_hold_extreme_shapes(tree):
    card = BeautifulSoup(picture.card(tree, 128, node=tree.size - 1), "html.parser")
    assert len(card.find_all(class_="node")) == len(card.find_all("g", attrs={"data-row": True})) == tree.size
    gallery = picture.gallery({"one": tree, "two": TREE})
    assert [axis.get_title(loc="left") or axis.get_title() for axis in gallery.axes] == ["one", "two"]


def test_a_small_picture_looks_the_same_and_every_strategy_keeps_its_colour():
    trees = {name: named(f"{name}@12") for name in ("chain", "star", "independent:2", "kary:2", "comb:3",
                                                           "expansion:2,2,1")}
    shades = {name: np.linspace(1, 0, tree.size) for name, tree in trees.items()}
    figure, drawn = picture.gallery(trees, weights=shades), io.BytesIO()
    figure.savefig(drawn, format="png")
    small = theme.with_palette(drawn.getvalue())
    before, after = (np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), int) for png in (drawn.getvalue(), small))
    distance = np.abs(before - after)
    assert before.shape == after.shape and len(small) < 0.6 * len(drawn.getvalue())
    assert distance.max() < 30 and distance.mean() < 1  # of 255: no hue becomes another's
    assert (after[0, 0] == 255).all()  # paper stays white


def table():
    rows = [(name, budget, kind, budget + place) for place, name in enumerate(("chain", "mine"))
            for budget in (1, 2, 4) for kind in ("code", "prose")]
    rows = pd.DataFrame(rows, columns=["family", "budget", "kind", "mean"])
    return rows.assign(low=rows["mean"] - 0.5, high=rows["mean"] + 0.5)


def test_lines_show_each_strategy_with_its_interval_and_its_name_at_its_end():
    figure = charts.lines(table(), x="budget", y="mean", by="family", panels="kind", band=True, log="x",
                          labels=("budget (nodes)", "tokens"))
    assert [axis.get_title(loc="left") or axis.get_title() for axis in figure.axes] == ["code", "prose"]
    for axis in figure.axes:
        drawn = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
        assert drawn == {"chain": [1, 2, 4], "mine": [2, 3, 5]}
        bands = [collection.get_datalim(axis.transData) for collection in axis.collections]
        assert sorted((band.y0, band.y1) for band in bands) == [(0.5, 4.5), (1.5, 5.5)]
    assert not figure.axes[0].texts and [text.get_text() for text in figure.axes[1].texts] == ["chain", "mine"]


def test_a_heat_map_frames_the_best_of_each_column_ties_too():
    values = pd.DataFrame({1: [0.5, 0.5], 2: [0.7, 0.9]}, index=["chain", "optimal"])
    axis = charts.heat_map(values, value_label="", x_label="", y_label="", frame_best=True).axes[0]
    assert sorted(patch.get_xy() for patch in axis.patches) == [(0, 0), (0, 1), (1, 1)]


def test_a_figure_is_written_twice_alike(tmp_path):
    theme.use_theme()
    for run in ("first", "second"):
        theme.save(picture.gallery({"tree": TREE}), tmp_path / run, "tree")
    for name in ("tree.png", "tree.svg"):
        assert (tmp_path / "first/figures" / name).read_bytes() == (tmp_path / "second/figures" / name).read_bytes()


def estimates(*rows):
    return pd.DataFrame(rows, columns=["kind", "arm", "value"]).assign(
        low=lambda rows: rows["value"] - 1, high=lambda rows: rows["value"] + 1)


def test_points_have_a_row_for_each_label_and_an_interval_for_each_name():
    rows = estimates(("code", "all", 1.0), ("prose", "all", 2.0), ("prose", "few", 3.0))
    figure = charts.points(rows, label="kind", by="arm", x_label="", line=0.0)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["code", "prose"]
    assert [list(bar.lines[0].get_xdata()) for bar in axis.containers] == [[1.0, 2.0], [3.0]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["all", "few"]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.3)), min_size=1, max_size=7))
def test_labels_at_the_ends_of_lines_do_not_overlap_and_move_only_if_they_must(labels):
    heights, sizes = map(np.array, zip(*labels))
    moved = np.array(charts._apart(heights, sizes))
    order = np.argsort(heights, kind="stable")
    low, high = moved[order] - sizes[order] / 2, moved[order] + sizes[order] / 2
    assert (low[1:] >= high[:-1] - 1e-9).all()
    own_low, own_high = heights[order] - sizes[order] / 2, heights[order] + sizes[order] / 2
    if (own_low[1:] >= own_high[:-1]).all():
        assert np.allclose(moved, heights)
    assert np.isclose(moved.mean(), heights.mean()) or len(set(sizes)) > 1 or (own_low[1:] < own_high[:-1]).any()


@pytest.mark.parametrize("count", [charts.MOST_LABELS, charts.MOST_LABELS + 1])
def test_few_lines_are_named_at_their_ends_and_many_in_a_legend(count):
    rows = pd.DataFrame([{"x": x, "y": x * line, "by": f"line {line}"} for line in range(count) for x in (1, 2)])
    figure = charts.lines(rows, x="x", y="y", by="by", labels=("", ""))
    ends = [text.get_text() for text in figure.axes[0].texts]
    assert ends == ([f"line {line}" for line in range(count)] if count <= charts.MOST_LABELS else [])
    assert bool(figure.legends) == (count > charts.MOST_LABELS)
