"""Small pictures: fewer bytes, the same size, and no pixel far from what it was."""

import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from lib.figures.pictures import with_palette


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
    assert before.size == after.size and distance.mean() < 1 and distance.max() < 100
