"""Figures show all rows and nothing else, in styles that tell strategies apart."""

import io

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from lib.lab import charts, theme
from lib.lab.theme import STYLES, styles_of
from lib.trees import named, picture
from lib.trees.names import COMPARED

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def test_every_strategy_has_a_style_of_its_own():
    """Names without one get distinct ones in the order given; a budget does not change a strategy."""
    names = [f"drafter {number}" for number in range(24)]
    for styles in (styles_of(COMPARED), styles_of(["chain", *names])):
        assert len({(style.colour, style.marker) for style in styles.values()}) == len(styles)
    assert styles_of(["optimal@32", "kary:7"]) == {"optimal@32": STYLES["optimal"], "kary:7": STYLES["kary"]}
    assert styles_of(names)["drafter 3"] == styles["drafter 3"]


def test_a_saved_picture_is_small_looks_the_same_and_is_written_twice_alike(tmp_path):
    trees = {name: named(f"{name}@12") for name in COMPARED[:6]}
    theme.use_theme()
    figure, drawn = picture.gallery(trees), io.BytesIO()
    figure.savefig(drawn, format="png")
    for run in ("first", "second"):
        theme.save(figure, tmp_path / run, "trees")
    first, second = ([(tmp_path / run / f"trees.{kind}").read_bytes() for kind in ("png", "svg")]
                     for run in ("first", "second"))
    before, after = (Image.open(io.BytesIO(png)).convert("RGB") for png in (drawn.getvalue(), first[0]))
    distance = np.abs(np.asarray(before, int) - np.asarray(after, int))
    assert first == second and len(first[0]) < 0.6 * len(drawn.getvalue())
    assert distance.max() < 30 and distance.mean() < 1, "of 255: no hue becomes another's"


def test_lines_show_each_strategy_with_its_interval_and_its_name():
    """The legend has the order in which the lines end."""
    names, kinds = [f"line {number}" for number in range(3)], ("code", "prose")
    rows = pd.DataFrame([(name, budget, kind, budget + number) for number, name in enumerate(names)
                         for budget in (1, 2, 4) for kind in kinds], columns=["family", "budget", "kind", "mean"])
    rows = rows.assign(low=rows["mean"] - 0.5, high=rows["mean"] + 0.5)
    options = dict(x="budget", y="mean", by="family", panels="kind", band=True, log="x", labels=("", ""))
    figure, without_rows = charts.lines(rows, **options), charts.lines(rows[:0], **options)
    assert len(without_rows.axes) == 1
    assert [axis.get_title(loc="left") or axis.get_title() for axis in figure.axes] == [*kinds]
    for axis in figure.axes:
        drawn = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
        assert drawn == {name: [1 + number, 2 + number, 4 + number] for number, name in enumerate(names)}
        bands = [collection.get_datalim(axis.transData) for collection in axis.collections]
        assert sorted((band.y0, band.y1) for band in bands) == [(n + 0.5, n + 4.5) for n in range(3)]
    assert [text.get_text() for legend in figure.legends for text in legend.texts] == names[::-1]


def test_a_heat_map_frames_the_best_of_each_column_ties_too():
    values = pd.DataFrame({1: [0.5, 0.5], 2: [0.7, 0.9]}, index=["chain", "optimal"])
    axis = charts.heat_map(values, title="", x_label="", frame_best=True).axes[0]
    assert sorted(patch.get_xy() for patch in axis.patches) == [(0, 0), (0, 1), (1, 1)]


def test_points_have_a_row_for_each_label_and_an_interval_for_each_name():
    rows = pd.DataFrame([("code", "all", 1.0), ("prose", "all", 2.0), ("prose", "few", 3.0)],
                        columns=["kind", "arm", "value"])
    rows = rows.assign(low=rows["value"] - 1, high=rows["value"] + 1)
    figure = charts.points(rows, label="kind", by="arm", x_label="", line=0.0)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["code", "prose"]
    assert [list(bar.lines[0].get_xdata()) for bar in figure.axes[0].containers] == [[1.0, 2.0], [3.0]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["all", "few"]
