"""Charts of measured numbers: lines with their intervals, points with their intervals, and heat maps."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, NullLocator, StrMethodFormatter

from lib.lab.theme import REFERENCE, shown, styles_of

MOST_MARKERS = 12  # of a line; a longer one has markers at equal distances


def lines(rows: pd.DataFrame, *, x: str, y: str, by: str, labels: tuple[str, str], panels: str | None = None,
          band: bool = False, log: str = "", bound: float | None = None) -> Figure:
    """A line for each value of column `by`; a panel for each value of `panels`.

    labels: of the axes. band: from the column low to high around a line. log: the logarithmic axes, "x" or "xy".
    bound: of a dotted line. The legend has the order in which the lines end.
    """
    rows = rows.infer_objects()  # rows that were put together of none and some have objects for numbers
    styles, one = styles_of(rows[by]), panels is None or rows.empty
    groups = [("", rows)] if one else list(rows.groupby(panels, sort=False))
    figure, axes = _panels(len(groups))
    for axis, (title, group) in zip(axes.flat, groups):
        for name, line in group.sort_values(x, kind="stable").groupby(by, sort=False):
            style = styles[name]
            axis.plot(line[x], line[y], color=style.colour, marker=style.marker, linestyle=style.dash,
                      label=shown(name), markevery=0.08 if len(line) > MOST_MARKERS else None, markeredgecolor="white",
                      markeredgewidth=0.6)
            if band:
                axis.fill_between(line[x], line["low"], line["high"], color=style.colour, alpha=0.15, linewidth=0)
        if bound is not None:
            axis.axhline(bound, **REFERENCE)
        if "x" in log:
            axis.set_xscale("log", base=2)
            plain_ticks(axis.xaxis, LogLocator(base=2))
        if "y" in log:
            axis.set_yscale("log")
            plain_ticks(axis.yaxis, LogLocator(subs=(1, 2, 5)))
        axis.set(title=shown(title), xlabel=labels[0])
        axis.tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel(labels[1])
    if len(styles) > 1:
        handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
        ends = rows[rows[x] == rows.groupby(by)[x].transform("max")].groupby(by)[y].mean()
        names = list(map(shown, ends.sort_values(ascending=False).index))
        figure.legend([handles[name] for name in names], names, loc="outside right upper")
    return figure


def _panels(count: int) -> tuple[Figure, np.ndarray]:
    """A figure of so many panels, and its axes [rows, columns], of which the last ones may be hidden."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    width, height = {1: (7.4, 4.4), 2: (10.6, 4.2)}.get(columns, (3.3 * columns + 2.0, 2.9))
    figure, axes = plt.subplots(rows, columns, squeeze=False, sharex=True, sharey=True, layout="constrained",
                                figsize=(width, height if rows == 1 else 2.9 * rows))
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, axes


def plain_ticks(axis: Axis, locator: Locator) -> None:
    """Ticks of a logarithmic axis, as numbers without powers."""
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def heat_map(table: pd.DataFrame, *, title: str, x_label: str, y_label: str = "", frame_best: bool = False) -> Figure:
    """A table as numbers on colours from light to dark; frame_best: frames the largest of each column, and ties."""
    table = table.rename(index=shown).astype(float)
    size = 2.2 + 0.68 * table.shape[1] + 0.08 * max(len(str(name)) for name in table.index), 1.3 + 0.36 * len(table)
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    sns.heatmap(table, annot=True, fmt=".2f", cmap="crest", linewidths=1.2, ax=axis, annot_kws={"fontsize": 9}, cbar=False)
    if frame_best:
        for row, column in np.argwhere(np.isclose(table, np.nanmax(table, axis=0, keepdims=True))):
            axis.add_patch(plt.Rectangle((column, row), 1, 1, fill=False, edgecolor="black", linewidth=2, zorder=5))
    axis.set(xlabel=x_label, ylabel=y_label, title=title)
    axis.tick_params(length=0)
    axis.tick_params(axis="y", labelrotation=0)
    return figure


def points(rows: pd.DataFrame, *, label: str, by: str, x_label: str, order: Sequence[str] = (),
           line: float | None = None) -> Figure:
    """Estimates (value, low, high) side by side: a row for each value of `label`, on it a point for each of `by`.

    order: the values of `by` in the order that gives them colours. line: where a vertical line is drawn.
    """
    labels, styles = list(dict.fromkeys(rows[label])), styles_of(list(order) or rows[by])
    names = [name for name in styles if name in set(rows[by])]
    size = 5.3 + 0.06 * max(map(len, labels), default=0), 1.4 + (0.2 + 0.08 * len(names)) * len(labels)
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    offsets = 0.5 * (np.arange(len(names)) - (len(names) - 1) / 2) / len(names)
    for name, offset in zip(names, offsets):
        style, part = styles[name], rows[rows[by] == name]
        height = np.array([labels.index(value) for value in part[label]]) + offset
        around = np.clip([part["value"] - part["low"], part["high"] - part["value"]], 0, None)
        axis.errorbar(part["value"], height, xerr=around, fmt=style.marker, color=style.colour, label=shown(name),
                      markersize=5, elinewidth=1.4, capsize=0)
    if line is not None:
        axis.axvline(line, **REFERENCE)
    axis.set(xlabel=x_label, yticks=range(len(labels)), yticklabels=list(map(shown, labels)),
             ylim=(len(labels) - 0.5, -0.5))
    if len(names) > 1:
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    return figure
