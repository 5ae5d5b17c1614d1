"""Figures of the speed study: ways of decoding over transformers' own, and the parts of a round's time."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from lib.cost.ways import GENERATE
from lib.lab import theme
from lib.studies.speed.alternatives import ADVISED, PLAIN, THEIRS

STEPS = (0.2, 0.5, 1, 2, 5, 10, 20)


def speeds(factors: pd.DataFrame) -> Figure:
    """One panel per batch: speed of each way over transformers' greedy generate, log, with intervals, sorted by speed
    at the first batch; the recommendation is red, transformers' ways grey, and the dashed line the loop without
    speculation. All panels have one scale. factors: `measure.factors`.
    """
    batches = sorted(factors["batch"].unique())
    mean = factors.groupby("alternative")["value"].mean()
    first = factors[factors["batch"] == batches[0]].set_index("alternative")["value"]
    order = sorted(mean.index, key=lambda name: (name not in first.index, -first.get(name, mean[name])))
    ends = factors[["value", "low", "high"]].stack()
    ticks = [step for step in STEPS if ends.min() <= 1.2 * step and step <= ends.max()]
    size = 2.6 * len(batches) + 2.4, 0.33 * len(order) + 1.2
    figure, axes = plt.subplots(1, len(batches), figsize=size, sharey=True, sharex=True, squeeze=False,
                                layout="constrained")
    for axis, batch in zip(axes.flat, batches):
        rows = factors[factors["batch"] == batch].set_index("alternative")
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


def where_time_goes(outside: pd.DataFrame) -> Figure:
    """The share of rounds' time in neither model, one bar per way and batch. outside: `measure.outside`."""
    order = sorted(outside["alternative"].unique(), key=lambda name: (name != PLAIN, name))
    shares = 100 * outside.pivot(index="alternative", columns="batch", values="outside").loc[order]
    figure, axis = plt.subplots(figsize=(6.4, 0.5 * len(order) + 1.2), layout="constrained")
    shares.add_prefix("batch ", axis="columns").plot.barh(
        ax=axis, width=0.8, color=[theme.BLUE, theme.SKY, theme.GREY, theme.GREEN, theme.ORANGE], ylabel="",
        xlabel="time of a round in neither model (%)")
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _point(axis, place: int, row: pd.Series, colour: str) -> None:
    axis.hlines(place, row["low"], row["high"], color=colour, linewidth=2.0)
    axis.plot(row["value"], place, "o", color=colour)
    axis.annotate(f"{row['value']:.2f}", (row["value"], place), (0, 5), textcoords="offset points", ha="center",
                  fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
