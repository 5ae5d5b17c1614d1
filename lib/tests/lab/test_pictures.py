"""Small pictures: fewer bytes, the same size, and no pixel far from what it was."""

import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from lib.lab import theme
from lib.lab.pictures import with_palette
from lib.trees import drawing, shapes


def test_a_figure_shrinks_and_looks_the_same():
    figure, drawn = Figure(figsize=(4, 3)), io.BytesIO()
    axis = figure.add_subplot()
    for power in range(5):
        axis.plot(np.linspace(0, 1) ** power)
    figure.savefig(drawn, format="png")
    before, after = (Image.open(io.BytesIO(png)).convert("RGB")
                     for png in (drawn.getvalue(), with_palette(drawn.getvalue())))
    assert len(with_palette(drawn.getvalue())) < 0.6 * len(drawn.getvalue())
    distance = np.abs(np.asarray(before, int) - np.asarray(after, int))
    assert before.size == after.size and distance.mean() < 1 and distance.max() < 30


def test_every_strategy_keeps_its_colour():
    trees = {name: shapes.at_budget(name, 12) for name in ("chain", "star", "independent:2", "kary:2", "comb:3",
                                                           "expansion:2,2,1")}
    shades = {name: np.linspace(1, 0, tree.size) for name, tree in trees.items()}
    figure, drawn = drawing.gallery(trees, weights=shades), io.BytesIO()
    figure.savefig(drawn, format="png")
    theme.close(figure)
    before, after = (np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), int)
                     for png in (drawn.getvalue(), with_palette(drawn.getvalue())))
    assert np.abs(before - after).max() < 30  # of 255: no hue becomes another's
    assert (after[0, 0] == 255).all()  # paper stays white
