"""Points with their intervals, one line of paper a setting: what choices lose, what is expected, how fast replay is."""

from typing import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab.theme import styles_of


def draw_points(
    rows: pd.DataFrame, *, label: str, by: str, x_label: str, panels: str | None = None, order: Sequence[str] = (),
    line: float | None = None, log_x: bool = False,
) -> Figure:
    """A line of paper a value of column `label`, on it a point with its interval a value of `by`; a panel a value of
    `panels`. Columns value, low and high; line: a vertical one to compare with.
    """
    labels, names = list(dict.fromkeys(rows[label])), list(order) or list(dict.fromkeys(rows[by]))
    groups = [("", rows)] if panels is None else list(rows.groupby(panels, sort=False))
    styles = styles_of(names)
    width = 2.2 + 3.1 * len(groups) + 0.06 * max(map(len, labels), default=0)
    size = width, 1.4 + (0.2 + 0.14 * len(names)) * len(labels)
    figure, axes = plt.subplots(1, len(groups), figsize=size, sharey=True, squeeze=False, layout="constrained")
    offsets = 0.5 * (np.arange(len(names)) - (len(names) - 1) / 2) / len(names)
    for axis, (title, group) in zip(axes[0], groups):
        for name, offset in zip(names, offsets):
            own = group[group[by] == name]
            height = np.array([labels.index(value) for value in own[label]]) + offset
            around = np.clip([own["value"] - own["low"], own["high"] - own["value"]], 0, None)
            style = styles[name]
            axis.errorbar(own["value"], height, xerr=around, fmt=style.marker, color=style.colour, label=name,
                          markersize=5, elinewidth=1.4, capsize=0)
        if line is not None:
            axis.axvline(line, color="#666666", linestyle=":", linewidth=1)
        if log_x:
            axis.set_xscale("log")
        axis.set(title=str(title), xlabel=x_label, yticks=range(len(labels)), yticklabels=labels)
    axes[0, 0].set_ylim(len(labels) - 0.5, -0.5)
    if len(names) > 1:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    return figure
