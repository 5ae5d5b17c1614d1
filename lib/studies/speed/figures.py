"""Figures of the speed study: every way of decoding over transformers' own, and where a round's time goes."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from lib.lab import theme
from lib.studies.speed.alternatives import GENERATE, PLAIN, THEIRS
from lib.studies.speed.questions import CHOSEN, SMALLEST

STEPS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)


def speeds(factors: pd.DataFrame, pair: str) -> Figure:
    """A panel a batch: speed of each way over transformers' greedy generate, log, with intervals; the first line is 1,
    the dashed one the loop without speculation.

    factors: `speed.factors`.
    """
    own = factors[factors["pair"] == pair]
    batches, order = sorted(own["batch"].unique()), _order(own)
    size = 3.0 * len(batches) + 2.2, 0.34 * len(order) + 1.2
    figure, axes = plt.subplots(1, len(batches), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, batch in zip(axes.flat, batches):
        rows = own[own["batch"] == batch].set_index("alternative")
        axis.axvline(1.0, color=theme.BLACK, linewidth=1.0)
        if PLAIN in rows.index:
            axis.axvline(rows.loc[PLAIN, "value"], color=theme.BLUE, linewidth=1.0, linestyle=theme.DASHED)
        for place, name in enumerate(order):
            if name in rows.index:
                _point(axis, place, rows.loc[name], theme.GREY if name in THEIRS else theme.BLUE)
        axis.set_title(f"batch {batch}")
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator(STEPS))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}×")
        ends = rows[["value", "low", "high"]].stack()
        axis.set_xlim(min(0.8, 0.9 * ends.min()), max(1.5, 1.25 * ends.max()))
        axis.set_xlabel(f"times as fast as {GENERATE}")
    axes[0, 0].set_yticks(range(len(order)), order)
    axes[0, 0].invert_yaxis()
    return figure


def where_time_goes(outside: pd.DataFrame, pair: str, goal: float) -> Figure:
    """The share of rounds' time that is in neither model, a bar a way and batch; the dashed line is the goal.

    outside: `speed.outside`.
    """
    own = outside[outside["pair"] == pair]
    batches, order = sorted(own["batch"].unique()), _order(own)
    height = 0.8 / len(batches)
    colours = [theme.BLUE, theme.SKY, theme.GREY, theme.GREEN, theme.ORANGE]
    figure, axis = plt.subplots(figsize=(6.4, 0.5 * len(order) + 1.2), layout="constrained")
    for turn, batch in enumerate(batches):
        rows = own[own["batch"] == batch].set_index("alternative")["outside"]
        places = [order.index(name) + (turn - (len(batches) - 1) / 2) * height for name in rows.index]
        axis.barh(places, 100 * rows, height, color=colours[turn % len(colours)], label=f"batch {batch}")
    axis.axvline(100 * goal, color=theme.VERMILLION, linestyle=theme.DASHED, linewidth=1.2, label="goal at batch 1")
    axis.set_yticks(range(len(order)), order)
    axis.invert_yaxis()
    axis.set_xlabel("time of a round in neither model (%)")
    axis.grid(axis="y", visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def questions(batches: pd.DataFrame, ratios: pd.DataFrame) -> Figure:
    """Left: predicted speedup of the fastest tree and of one drafted token over the batch, the tree's nodes beside it.
    Right: the fastest tree's nodes and depth over what a level of drafting costs.

    batches: `questions.by_batch`; ratios: `questions.by_ratio`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 3.8), layout="constrained")
    _by_batch(left, batches)
    chosen = ratios[ratios["family"] == CHOSEN].sort_values("ratio")
    # Of a chain both are the same: depth is dashed, and its marker fits into that of nodes.
    for column, colour, marker, dash, size in (("nodes", theme.VERMILLION, "s", theme.SOLID, 9),
                                               ("depth", theme.GREEN, "o", theme.DASHED, 5)):
        right.plot(chosen["ratio"], chosen[column], color=colour, marker=marker, linestyle=dash, markersize=size,
                   label=column, clip_on=False)
    right.set_xscale("log")
    right.set_xticks(chosen["ratio"], [f"{ratio:g}" for ratio in chosen["ratio"]])
    right.minorticks_off()
    right.set_ylim(bottom=0)
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="cost of a drafted level / a plain round", ylabel="of the fastest tree", title="How large a tree?")
    right.legend()
    return figure


def _by_batch(axis, batches: pd.DataFrame) -> None:
    """The left half of `questions`."""
    looks = {CHOSEN: (theme.VERMILLION, "X", theme.SOLID), SMALLEST: (theme.BLUE, "o", theme.DASHED)}
    for name, (colour, marker, dash) in looks.items():
        line = batches[batches["family"] == name].sort_values("batch")
        axis.plot(line["batch"], line["speedup"], color=colour, marker=marker, linestyle=dash, label=name)
        axis.fill_between(line["batch"], line["speedup_low"], line["speedup_high"], color=colour, alpha=0.13,
                          linewidth=0)
    for row in batches[batches["family"] == CHOSEN].itertuples():
        axis.annotate(f"n = {row.nodes}", (row.batch, row.speedup), (0, -15), textcoords="offset points", ha="center",
                      fontsize=8, zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8})
    axis.axhline(1.0, color=theme.BLACK, linewidth=1.0)
    sizes = sorted(batches["batch"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, sizes)
    axis.minorticks_off()
    axis.set(xlabel="batch (rows)", ylabel="predicted speedup\nover plain decoding", title="Until which batch?")
    axis.margins(x=0.1, y=0.15)
    axis.legend()


def _order(rows: pd.DataFrame) -> list[str]:
    """Transformers' ways, the plain loop, then the others as they come."""
    there = list(dict.fromkeys(rows["alternative"]))
    first = [name for name in (*THEIRS, PLAIN) if name in there]
    return first + sorted(name for name in there if name not in first)


def _point(axis, place: int, row: pd.Series, colour: str) -> None:
    axis.hlines(place, row["low"], row["high"], color=colour, linewidth=2.0)
    axis.plot(row["value"], place, "o", color=colour)
    axis.annotate(
        f"{row['value']:.2f}",
        (row["value"], place),
        (0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )
