"""Figures of the speed study: ways of decoding over transformers' own, the parts of a round's time, predictions."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from lib.cost.ways import GENERATE
from lib.lab import theme
from lib.studies.speed.alternatives import ADVISED, PLAIN, THEIRS

MARKERS = "osDv^P"
STEPS = (0.2, 0.5, 1, 2, 5, 10, 20)


def speeds(factors: pd.DataFrame, pair: str) -> Figure:
    """One panel per batch: speed of each way over transformers' greedy generate, log, with intervals, sorted by speed
    at the first batch; the recommendation is red, transformers' ways grey, and the dashed line the loop without
    speculation. All panels have one scale. factors: `measure.factors`.
    """
    own = factors[factors["pair"] == pair]
    batches = sorted(own["batch"].unique())
    mean = own.groupby("alternative")["value"].mean()
    first = own[own["batch"] == batches[0]].set_index("alternative")["value"]
    order = sorted(mean.index, key=lambda name: (name not in first.index, -first.get(name, mean[name])))
    ends = own[["value", "low", "high"]].stack()
    ticks = [step for step in STEPS if ends.min() <= 1.2 * step and step <= ends.max()]
    size = 2.6 * len(batches) + 2.4, 0.33 * len(order) + 1.2
    figure, axes = plt.subplots(1, len(batches), figsize=size, sharey=True, sharex=True, squeeze=False,
                                layout="constrained")
    for axis, batch in zip(axes.flat, batches):
        rows = own[own["batch"] == batch].set_index("alternative")
        if PLAIN in rows.index:
            axis.axvline(rows.loc[PLAIN, "value"], color=theme.BLACK, linewidth=1.0, linestyle=theme.DASHED)
        for place, name in enumerate(order):
            if name in rows.index:
                _point(axis, place, rows.loc[name], _colour(name))
        axis.set(title=f"batch {batch}", xscale="log", xlabel=f"times as fast as {GENERATE}")
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlim(0.85 * ends.min(), 1.3 * ends.max())
    axes[0, 0].set_yticks(range(len(order)), order)
    for label in axes[0, 0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == ADVISED else "normal")
    axes[0, 0].invert_yaxis()
    return figure


def _colour(name: str) -> str:
    return theme.GREY if name in THEIRS else theme.VERMILLION if name == ADVISED else theme.BLUE


def where_time_goes(outside: pd.DataFrame, pair: str) -> Figure:
    """The share of rounds' time in neither model, one bar per way and batch.

    outside: `measure.outside`.
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
    axis.set_yticks(range(len(order)), order)
    axis.invert_yaxis()
    axis.set_xlabel("time of a round in neither model (%)")
    axis.grid(axis="y", visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def predicted_and_measured(rows: pd.DataFrame) -> Figure:
    """Predicted over measured tokens per second, one colour per batch, intervals as whiskers; the dashed line is
    agreement, the band 25 % to either side. rows: the table "speed_predicted".
    """
    figure, axis = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
    batches = sorted(rows["batch"].unique())
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(batches)))
    for at, (batch, colour) in enumerate(zip(batches, colours)):
        own = rows[rows["batch"] == batch]
        axis.vlines(own["measured"], own["predicted_low"], own["predicted_high"], color=colour, linewidth=1, alpha=0.6)
        axis.scatter(own["measured"], own["predicted"], color=colour, marker=MARKERS[at % 6], zorder=3,
                     label=f"batch {batch}")
    ends = np.array([rows[["measured", "predicted_low"]].min().min() * 0.8,
                     rows[["measured", "predicted_high"]].max().max() * 1.25])
    axis.plot(ends, ends, color="black", linestyle="--", linewidth=1)
    axis.fill_between(ends, 0.75 * ends, 1.25 * ends, color=theme.PALE, alpha=0.5, linewidth=0, zorder=0)
    axis.set(xscale="log", yscale="log", xlabel="measured tokens per second", ylabel="predicted tokens per second",
             xlim=ends, ylim=ends)
    for side in (axis.xaxis, axis.yaxis):  # plain numbers, where few powers of ten are in sight
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        side.set_minor_locator(NullLocator())
    axis.legend(loc="upper left")
    return figure


def _order(rows: pd.DataFrame) -> list[str]:
    """Transformers' ways, the plain loop, then the others by name."""
    there = list(dict.fromkeys(rows["alternative"]))
    first = [name for name in (*THEIRS, PLAIN) if name in there]
    return first + sorted(name for name in there if name not in first)


def _point(axis, place: int, row: pd.Series, colour: str) -> None:
    axis.hlines(place, row["low"], row["high"], color=colour, linewidth=2.0)
    axis.plot(row["value"], place, "o", color=colour)
    axis.annotate(f"{row['value']:.2f}", (row["value"], place), (0, 5), textcoords="offset points", ha="center",
                  fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
