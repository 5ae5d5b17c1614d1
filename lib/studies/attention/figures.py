"""Figures of the attention study: time over draft length, growth over one token, who wins, ratios, the roofline."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm, ListedColormap
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
    "flashinfer": Style(theme.ORANGE, "<", theme.SOLID),
    "xformers": Style(theme.VERMILLION, ">", theme.SOLID),
    "dense mask": Style(theme.PURPLE, "^", theme.SOLID),
    "branch batch": Style(theme.GREY, "v", theme.DOTTED),
    "path by path": Style(theme.ORANGE, "D", theme.DOTTED),
    "path by path, folded": Style(theme.VERMILLION, "P", theme.DASH_DOT),
    "node by node": Style(theme.BLACK, "X", theme.DOTTED),
}
LIGHT = (theme.SKY, theme.PURPLE, theme.ORANGE, theme.GREY)  # colours that need dark letters
MARKERS = "osDv^P"
PREDICTED = {"color": theme.VERMILLION, "linewidth": 1.2, "linestyle": theme.DASHED}


def time_over_draft(rows: pd.DataFrame, dtype: str) -> Figure:
    """One panel per batch (down) and prefix (across): median time over draft length with quartiles, on log axes."""
    own = summary.timed(rows)
    own = own[(own["dtype"] == dtype) & own["alternative"].isin(STYLES)]
    batches, prefixes, drafts = (sorted(rows[name].unique()) for name in ("batch", "prefix", "draft"))
    size = 2.6 * len(prefixes) + 1.6, 2.1 * len(batches) + 1.0
    figure, axes = _panels(len(batches), len(prefixes), size, sharex=True, sharey="row")
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
        _log_axes(axis, drafts)
    _legend(figure, own["alternative"])
    return figure


def growth_over_draft(rows: pd.DataFrame, balanced: dict[str, float], tolerance: float = summary.TOLERANCE,
                      alternative: str = summary.BASE) -> Figure:
    """One panel per dtype (down) and batch (across): a draft's time over one token's, by prefix.

    balanced: by dtype, the predicted draft length at which arithmetic takes longer than reading.
    """
    grown = summary.growth(rows, alternative)
    dtypes, prefixes, batches = (list(summary.timed(rows)[name].unique()) for name in ("dtype", "prefix", "batch"))
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(prefixes)))
    size = 2.7 * len(batches) + 2.4, 2.3 * len(dtypes) + 0.6
    steps = (1, 2, 5) if grown["growth"].max() < 50 else (1,)
    figure, axes = _panels(len(dtypes), len(batches), size, sharex=True)
    for (dtype, batch), panel in grown.groupby(["dtype", "batch"]):
        axis = axes[dtypes.index(dtype), batches.index(batch)]
        for prefix, line in panel.groupby("prefix"):
            at = prefixes.index(prefix)
            axis.plot(line["draft"], line["growth"], color=colours[at], marker=MARKERS[at % 6])
        axis.axvline(balanced[dtype], **PREDICTED)
    for axis in axes.flat:
        axis.axhspan(0.5, 1 + tolerance, color=theme.PALE, alpha=0.6, zorder=0)
        _log_axes(axis, sorted(rows["draft"].unique()), steps, unit="×")
        axis.set_ylim(bottom=min(0.7, 0.9 * grown["growth"].min()))
    for axis, dtype in zip(axes[:, 0], dtypes):
        axis.set_ylabel(f"{dtype}\ntime / one token's")
    for column, batch in enumerate(batches):
        axes[0, column].set_title(f"batch {batch}")
        axes[-1, column].set_xlabel("draft length (nodes)")
    handles = [
        plt.Line2D([], [], color=colour, marker=MARKERS[at % 6], label=f"prefix {prefix:,}")
        for at, (prefix, colour) in enumerate(zip(prefixes, colours))
    ]
    handles.append(plt.Rectangle((0, 0), 1, 1, color=theme.PALE, alpha=0.6, label=f"free: up to {1 + tolerance:g}×"))
    handles.append(plt.Line2D([], [], **PREDICTED, label="predicted:\narithmetic = reading"))
    figure.legend(handles=handles, loc="outside right center")
    return figure


def who_wins(rows: pd.DataFrame) -> Figure:
    """One panel per dtype: each cell's fastest alternative by colour, and the second's time over the fastest's.

    White cells were not timed.
    """
    best = summary.winners(rows)
    names = [name for name in STYLES if name in set(best["alternative"])]
    dtypes, drafts = list(summary.timed(rows)["dtype"].unique()), sorted(rows["draft"].unique())
    settings = sorted(set(zip(rows["batch"], rows["prefix"])))
    figure, axes = _panels(1, len(dtypes), (0.62 * len(drafts) * len(dtypes) + 3.2, 0.3 * len(settings) + 1.4))
    colours = ListedColormap([STYLES[name].colour for name in names])
    for axis, dtype in zip(axes.flat, dtypes):
        grid = np.full((len(settings), len(drafts)), np.nan)
        for cell in best[best["dtype"] == dtype].itertuples():
            at = settings.index((cell.batch, cell.prefix)), drafts.index(cell.draft)
            grid[at] = names.index(cell.alternative)
            letters = "black" if STYLES[cell.alternative].colour in LIGHT else "white"
            lead = "alone" if np.isnan(cell.lead) else f"{cell.lead:.2f}"
            axis.text(at[1], at[0], lead, ha="center", va="center", fontsize=7, color=letters)
        axis.imshow(grid, cmap=colours, norm=BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names)), aspect="auto")
        axis.set_xticks(range(len(drafts)), drafts)
        axis.set_yticks(range(len(settings)), [f"{batch} × {prefix:,}" for batch, prefix in settings])
        axis.set_title(dtype)
        axis.set_xlabel("draft length (nodes)")
        axis.grid(False)
    axes[0, 0].set_ylabel("batch × prefix")
    handles = [plt.Rectangle((0, 0), 1, 1, color=STYLES[name].colour, label=name) for name in names]
    figure.legend(handles=handles, loc="outside right center", title="fastest\n(second / first)", title_fontsize=9)
    return figure


def ratio_to_base(rows: pd.DataFrame) -> Figure:
    """One panel per dtype: time over that of `folded`, geometric mean over batches and prefixes, range as a whisker."""
    ratio = summary.ratios(rows)
    ratio = ratio[~ratio["alternative"].isin([summary.BASE, *summary.NO_RIVALS])]
    dtypes = list(ratio["dtype"].unique())
    figure, axes = _panels(1, len(dtypes), (4.2 * len(dtypes) + 1.6, 3.6))
    for axis, dtype in zip(axes.flat, dtypes):
        lines = _in_order(ratio[ratio["dtype"] == dtype])
        for at, (name, line) in enumerate(lines):
            spread = np.exp(line.assign(log=np.log(line["ratio"])).groupby("draft")["log"].agg(["mean", "min", "max"]))
            aside = spread.index * 2 ** (0.22 * (at - (len(lines) - 1) / 2))  # beside each other
            axis.plot(aside, spread["mean"], **STYLES[name].line)
            axis.vlines(aside, spread["min"], spread["max"], color=STYLES[name].colour, linewidth=1.0, alpha=0.6)
        axis.axhline(1.0, color=STYLES[summary.BASE].colour, linewidth=1.2)
        axis.set_title(dtype)
        axis.set_xlabel("draft length (nodes)")
        _log_axes(axis, sorted(rows["draft"].unique()), steps=(1, 2, 5), unit="×")
    axes[0, 0].set_ylabel(f"time / that of {summary.BASE}")
    _legend(figure, ratio["alternative"])
    return figure


def roofline(shares: pd.DataFrame, peaks: dict[str, float], names: tuple[str, ...]) -> Figure:
    """One panel per dtype: operations per second over operations per byte, with the machine's two roofs and the rate of
    its fastest product of matrices. Each cell is a point, larger for longer drafts.

    shares: as `summary.shares` gives them; peaks: by the names of the table "peaks"; names: the alternatives shown.
    """
    own = shares[shares["alternative"].isin(names)]
    dtypes = list(own["dtype"].unique())
    figure, axes = _panels(1, len(dtypes), (4.6 * len(dtypes) + 1.6, 3.9))
    intensity = np.geomspace(own["intensity"].min() / 1.5, own["intensity"].max() * 1.5, 200)
    for axis, dtype in zip(axes.flat, dtypes):
        for bandwidth, look in (("bandwidth", theme.SOLID), ("cached bandwidth", theme.DOTTED)):
            roof = np.minimum(intensity * peaks[bandwidth], peaks[f"throughput {dtype}"]) / 1e9
            axis.plot(intensity, roof, color="black", linestyle=look, linewidth=1.2)
        axis.axhline(peaks[f"products {dtype}"] / 1e9, color="black", linestyle=theme.DASHED, linewidth=0.8)
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
    handles += [plt.Line2D([], [], color="black", linestyle=look, label=label) for look, label in
                ((theme.SOLID, "roof, from memory"), (theme.DOTTED, "roof, from caches"),
                 (theme.DASHED, "products of matrices"))]
    figure.legend(handles=handles, loc="outside right center", title="larger: longer draft", title_fontsize=9)
    return figure


def _panels(rows: int, columns: int, size: tuple[float, float], sharey: bool | str = True, **options):
    return plt.subplots(rows, columns, figsize=size, sharey=sharey, squeeze=False, layout="constrained", **options)


def _in_order(rows: pd.DataFrame):
    """(name, its rows by draft), in the order of STYLES."""
    groups = dict(list(rows.sort_values("draft").groupby("alternative")))
    return [(name, groups[name]) for name in STYLES if name in groups]


def _log_axes(axis, drafts: list[int], steps: tuple[int, ...] = (1,), unit: str = "") -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_major_formatter("{x:g}" + unit)
    axis.set_xticks(drafts, drafts)
    axis.minorticks_off()


def _legend(figure: Figure, names) -> None:
    handles = [plt.Line2D([], [], **style.line, label=name) for name, style in STYLES.items() if name in set(names)]
    figure.legend(handles=handles, loc="outside right center")
