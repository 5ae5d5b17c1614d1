"""Figures of many shapes side by side; `picture` has trees for screens."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lib.lab.theme import ROLES, shown, styles_of
from lib.trees.picture import positions
from lib.trees.tree import ROOT, Tree

PALEST = 0.88  # the grey of a node that is never accepted


def gallery(trees: Mapping[str, Tree], *, weights: Mapping[str, Sequence[float]] | None = None,
            notes: Mapping[str, str] | None = None, columns: int = 4) -> Figure:
    """Shapes side by side, each filling its panel, in its strategy's colour.

    weights: by name float[m] in [0, 1], how strongly each node is coloured. notes: by name a line below the title.
    """
    columns = min(columns, len(trees))
    rows = -(-len(trees) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.75 * columns, 2.4 * rows), squeeze=False,
                                layout="constrained")
    for axis in axes.flat[len(trees):]:
        axis.set_visible(False)
    styles = styles_of(trees)
    for axis, (name, tree) in zip(axes.flat, trees.items()):
        _draw(tree, axis, styles[name].colour, (weights or {}).get(name, np.ones(tree.size)))
        axis.text(0, 1.0, (notes or {}).get(name, ""), transform=axis.transAxes, fontsize=8.5, color="#444444")
        axis.set_title(shown(name), color=styles[name].colour, pad=16 if notes else 6)
    return figure


def _draw(tree: Tree, axis: Axes, colour: str, weights: Sequence[float]) -> None:
    """A tree with its root on top."""
    points = np.column_stack((positions(tree), -tree.depth.astype(float)))
    low, high = points.min(axis=0), points.max(axis=0)
    axis.set_xlim(low[0] - 1.2, high[0] + 1.2)  # a chain must not fill the width with one node
    axis.set_ylim(-max(tree.max_depth, 3) - 0.5, 0.5)
    axis.set_axis_off()
    axis.add_collection(LineCollection(np.stack((points[tree.parents[1:]], points[1:]), axis=1), colors="#B5B5B5",
                                       linewidths=0.9, zorder=1))
    strength = np.clip(np.asarray(weights, dtype=float), 0, 1)[:, None]
    colours = strength * np.array(to_rgba(colour)[:3]) + (1 - strength) * PALEST
    colours[ROOT] = to_rgba(ROLES["root"])[:3]
    box, spans = axis.get_window_extent(), np.ptp(points, axis=0) + 1.2
    room = 0.62 * min(box.width / spans[0], box.height / spans[1]) * 72 / axis.figure.dpi
    width = float(np.clip(room, 2.0, 17.0))
    axis.scatter(*points.T, s=width**2, c=colours, edgecolors="white", linewidths=min(0.8, width / 10), zorder=3)


def describe(tree: Tree) -> str:
    """A tree's form in words: nodes, depth, leaves."""
    nodes, leaves = tree.budget, len(tree.leaves)
    return f"{nodes} node{'s' * (nodes != 1)}, depth {tree.max_depth}, {leaves} {'leaf' if leaves == 1 else 'leaves'}"
