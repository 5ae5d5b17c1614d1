"""Figures of the attention study: time over draft length, and the roofline."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from lib.lab import theme
from lib.lab.theme import Style
from lib.studies.attention import summary

# One style per alternative, in this order everywhere; "auto" is always one of the others.
STYLES = {
    "onepass": Style(theme.GREEN, "p", theme.SOLID),
    "triton": Style(theme.GREEN, "h", theme.DASH_DOT),
    "flex": Style(theme.GREY, "d", theme.DASHED),
    "folded": Style(theme.BLUE, "o", theme.SOLID),
    "split": Style(theme.SKY, "s", theme.DASHED),
    "dense mask": Style(theme.PURPLE, "^", theme.SOLID),
    "branch batch": Style(theme.GREY, "v", theme.DOTTED),
    "path by path": Style(theme.VERMILLION, "P", theme.DASH_DOT),
    "node by node": Style(theme.BLACK, "X", theme.DOTTED),
}


def time_over_draft(rows: pd.DataFrame, dtype: str) -> Figure:
    """One panel per batch (down) and prefix (across): median time over draft length with quartiles, on log axes."""
    own = summary.timed(rows)
    own = own[(own["dtype"] == dtype) & own["alternative"].isin(STYLES)]
    batches, prefixes, drafts = (sorted(rows[name].unique()) for name in ("batch", "prefix", "draft"))
    size = 2.6 * len(prefixes) + 1.6, 2.1 * len(batches) + 1.0
    figure, axes = plt.subplots(len(batches), len(prefixes), figsize=size, sharex=True, sharey="row", squeeze=False,
                                layout="constrained")
    for (batch, prefix), panel in own.groupby(["batch", "prefix"]):
        axis = axes[batches.index(batch), prefixes.index(prefix)]
        for name, line in _in_order(panel):
            axis.plot(line["draft"], line["median_ms"], **STYLES[name].line)
            axis.fill_between(line["draft"], line["lower_ms"], line["upper_ms"], color=STYLES[name].colour, alpha=0.15,
                              linewidth=0)
    for column, prefix in enumerate(prefixes):
        axes[0, column].set_title(f"prefix {prefix:,}")
        axes[-1, column].set_xlabel("draft length (nodes)")
    for row, batch in enumerate(batches):
        axes[row, 0].set_ylabel(f"batch {batch}\nms per call")
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator())
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xticks(drafts, drafts)
        axis.minorticks_off()
    names = set(own["alternative"])
    handles = [plt.Line2D([], [], **style.line, label=name) for name, style in STYLES.items() if name in names]
    figure.legend(handles=handles, loc="outside right center")
    return figure


def roofline(shares: pd.DataFrame, peaks: dict[str, float], names: tuple[str, ...]) -> Figure:
    """One panel per dtype: operations per second over operations per byte, with the machine's roof. Each cell is a
    point, larger for longer drafts.

    shares: as `summary.shares` gives them; peaks: by the names of the table "peaks"; names: the alternatives shown.
    """
    own = shares[shares["alternative"].isin(names)]
    dtypes = list(own["dtype"].unique())
    size = 4.6 * len(dtypes) + 1.6, 3.9
    figure, axes = plt.subplots(1, len(dtypes), figsize=size, sharey=True, squeeze=False, layout="constrained")
    intensity = np.geomspace(own["intensity"].min() / 1.5, own["intensity"].max() * 1.5, 200)
    for axis, dtype in zip(axes.flat, dtypes):
        roof = np.minimum(intensity * peaks["bandwidth"], peaks[f"throughput {dtype}"]) / 1e9
        axis.plot(intensity, roof, color="black", linewidth=1.2)
        for name, points in _in_order(own[own["dtype"] == dtype]):
            style, size = STYLES[name], 12 + 9 * np.log2(points["draft"])
            axis.scatter(points["intensity"], points["rate"] / 1e9, s=size, color=style.colour, marker=style.marker,
                         alpha=0.75, edgecolor="white", linewidth=0.5)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(dtype)
        axis.set_xlabel("operations per byte")
    axes[0, 0].set_ylabel("GFLOP/s")
    handles = [plt.Line2D([], [], color=STYLES[name].colour, marker=STYLES[name].marker, linestyle="", label=name)
               for name in STYLES if name in set(own["alternative"])]
    handles.append(plt.Line2D([], [], color="black", label="roof"))
    figure.legend(handles=handles, loc="outside right center", title="larger: longer draft", title_fontsize=9)
    return figure


def _in_order(rows: pd.DataFrame):
    """(name, its rows by draft), in the order of STYLES."""
    groups = dict(list(rows.sort_values("draft").groupby("alternative")))
    return [(name, groups[name]) for name in STYLES if name in groups]
