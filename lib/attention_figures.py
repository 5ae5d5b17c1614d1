"""Figures of the attention study: time over draft length, growth over one token, who wins, ratios to folded."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from lib import attention_summary as summary

# One colour (Okabe and Ito's, safe for colour-blind readers), marker and dash an alternative, in this order everywhere.
STYLES = {
    "folded": ("#0072B2", "o", "-"),
    "split": ("#56B4E9", "s", "--"),
    "dense mask": ("#D55E00", "^", "-"),
    "branch batch": ("#CC79A7", "v", "--"),
    "path by path": ("#E69F00", "D", ":"),
    "path by path, folded": ("#009E73", "P", "-."),
    "node by node": ("#000000", "X", ":"),
}
PALE = ("split", "branch batch", "path by path")  # colours that want dark letters
PREDICTED = "#D55E00"


def time_over_draft(rows: pd.DataFrame, dtype: str) -> Figure:
    """A panel a batch (down) and prefix (across): median time over draft length, quartiles as a band, both axes log."""
    own = summary.timed(rows)
    own = own[own["dtype"] == dtype]
    batches, prefixes, drafts = (sorted(rows[name].unique()) for name in ("batch", "prefix", "draft"))
    size = 2.6 * len(prefixes) + 1.6, 2.1 * len(batches) + 1.0
    figure, axes = plt.subplots(
        len(batches), len(prefixes), figsize=size, sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    for (batch, prefix), panel in own.groupby(["batch", "prefix"]):
        axis = axes[batches.index(batch), prefixes.index(prefix)]
        for name, line in _in_order(panel):
            _banded(axis, line["draft"], line["median_ms"], line["lower_ms"], line["upper_ms"], name)
    for column, prefix in enumerate(prefixes):
        axes[0, column].set_title(f"prefix {prefix:,}")
        axes[-1, column].set_xlabel("draft length (nodes)")
    for row, batch in enumerate(batches):
        axes[row, 0].set_ylabel(f"batch {batch}\nms a call")
    for axis in axes.flat:
        _log_axes(axis, drafts)
    _legend(figure, own["alternative"])
    return figure


def growth_over_draft(rows: pd.DataFrame, balanced: dict[str, float], tolerance: float = 0.25) -> Figure:
    """A panel a dtype (down) and batch (across): how many times one token's time a draft takes, folded, by prefix.

    `balanced` holds by dtype the draft length at which arithmetic should overtake reading: predicted beside measured.
    """
    grown = summary.growth(rows)
    dtypes, prefixes, batches = (list(rows[name].unique()) for name in ("dtype", "prefix", "batch"))
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(prefixes)))
    size = 2.7 * len(batches) + 2.4, 2.3 * len(dtypes) + 0.6
    figure, axes = plt.subplots(
        len(dtypes), len(batches), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for (dtype, batch), panel in grown.groupby(["dtype", "batch"]):
        axis = axes[dtypes.index(dtype), batches.index(batch)]
        for prefix, line in panel.groupby("prefix"):
            at = prefixes.index(prefix)
            axis.plot(line["draft"], line["growth"], color=colours[at], marker="osDv^P"[at % 6], markersize=4)
        axis.axvline(balanced[dtype], color=PREDICTED, linewidth=1.2, linestyle=(0, (2, 1)))
    for axis in axes.flat:
        axis.axhspan(0.5, 1 + tolerance, color="0.9", zorder=0)
        _log_axes(axis, sorted(rows["draft"].unique()), unit="×")
        axis.set_ylim(bottom=0.8)
    for axis, dtype in zip(axes[:, 0], dtypes):
        axis.set_ylabel(f"{dtype}\ntime / one token's")
    for column, batch in enumerate(batches):
        axes[0, column].set_title(f"batch {batch}")
        axes[-1, column].set_xlabel("draft length (nodes)")
    handles = [
        plt.Line2D([], [], color=colour, marker="osDv^P"[at % 6], markersize=4, label=f"prefix {prefix:,}")
        for at, (prefix, colour) in enumerate(zip(prefixes, colours))
    ]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="0.9", label=f"free: up to {1 + tolerance:g}×"))
    handles.append(plt.Line2D([], [], color=PREDICTED, linestyle=(0, (2, 1)), label="predicted:\narithmetic = reading"))
    figure.legend(handles=handles, loc="outside right center")
    return figure


def who_wins(rows: pd.DataFrame) -> Figure:
    """A panel a dtype: the fastest alternative of each cell by colour, and how many times longer the second took."""
    best = summary.winners(rows)
    names = [name for name in STYLES if name in set(best["alternative"])]
    dtypes, drafts = list(rows["dtype"].unique()), sorted(rows["draft"].unique())
    settings = sorted(set(zip(rows["batch"], rows["prefix"])))
    figure, axes = plt.subplots(
        1, len(dtypes), figsize=(0.62 * len(drafts) * len(dtypes) + 3.2, 0.3 * len(settings) + 1.4),
        sharey=True, squeeze=False, layout="constrained",
    )
    colours = ListedColormap([STYLES[name][0] for name in names])
    for axis, dtype in zip(axes.flat, dtypes):
        grid = np.full((len(settings), len(drafts)), np.nan)
        for cell in best[best["dtype"] == dtype].itertuples():
            at = settings.index((cell.batch, cell.prefix)), drafts.index(cell.draft)
            grid[at] = names.index(cell.alternative)
            ink = "black" if cell.alternative in PALE else "white"
            axis.text(at[1], at[0], f"{cell.lead:.2f}", ha="center", va="center", fontsize=7, color=ink)
        axis.imshow(grid, cmap=colours, norm=BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names)), aspect="auto")
        axis.set_xticks(range(len(drafts)), drafts)
        axis.set_yticks(range(len(settings)), [f"{batch} × {prefix:,}" for batch, prefix in settings])
        axis.set_title(dtype)
        axis.set_xlabel("draft length (nodes)")
        axis.grid(False)
    axes[0, 0].set_ylabel("batch × prefix")
    handles = [plt.Rectangle((0, 0), 1, 1, color=STYLES[name][0], label=name) for name in names]
    figure.legend(handles=handles, loc="outside right center", title="fastest\n(second / first)")
    return figure


def ratio_to_base(rows: pd.DataFrame) -> Figure:
    """A panel a dtype: time over the folded form's, geometric mean over batches and prefixes, range as a whisker."""
    ratio = summary.ratios(rows)
    ratio = ratio[ratio["alternative"] != summary.BASE]
    dtypes = list(rows["dtype"].unique())
    figure, axes = plt.subplots(
        1, len(dtypes), figsize=(4.2 * len(dtypes) + 1.6, 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, dtype in zip(axes.flat, dtypes):
        lines = _in_order(ratio[ratio["dtype"] == dtype])
        for at, (name, line) in enumerate(lines):
            spread = np.exp(line.assign(log=np.log(line["ratio"])).groupby("draft")["log"].agg(["mean", "min", "max"]))
            aside = spread.index * 2 ** (0.22 * (at - (len(lines) - 1) / 2))  # beside each other, not on top
            colour, marker, dash = STYLES[name]
            axis.plot(aside, spread["mean"], dash, color=colour, marker=marker, markersize=5)
            axis.vlines(aside, spread["min"], spread["max"], color=colour, linewidth=1.0, alpha=0.6)
        axis.axhline(1.0, color=STYLES[summary.BASE][0], linewidth=1.2)
        axis.set_title(dtype)
        axis.set_xlabel("draft length (nodes)")
        _log_axes(axis, sorted(rows["draft"].unique()), steps=(1, 2, 5), unit="×")
    axes[0, 0].set_ylabel(f"time / that of {summary.BASE}")
    _legend(figure, ratio["alternative"])
    return figure


def _in_order(rows: pd.DataFrame):
    """(name, its rows by draft), in the order of STYLES."""
    groups = dict(list(rows.sort_values("draft").groupby("alternative")))
    return [(name, groups[name]) for name in STYLES if name in groups]


def _banded(axis, x, middle, lower, upper, name: str) -> None:
    colour, marker, dash = STYLES[name]
    axis.plot(x, middle, dash, color=colour, marker=marker, markersize=4, label=name)
    axis.fill_between(x, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _log_axes(axis, drafts: list[int], steps: tuple[int, ...] = (1,), unit: str = "") -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_major_formatter("{x:g}" + unit)
    axis.set_xticks(drafts, drafts)
    axis.minorticks_off()


def _legend(figure: Figure, names) -> None:
    present = [name for name in STYLES if name in set(names)]
    handles = [
        plt.Line2D([], [], color=colour, marker=marker, linestyle=dash, label=name)
        for name, (colour, marker, dash) in ((name, STYLES[name]) for name in present)
    ]
    figure.legend(handles=handles, loc="outside right center")
