"""Figures of the drafter study: what a drafter costs against what it gains, and speed expected beside measured."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lib.lab import theme

LINES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # speedups at which lines of equal expected speed are drawn
CHEAPEST = 0.01  # target steps: what costs less stands here, since a logarithm has no place for nothing


def cost_against_gain(costs: pd.DataFrame, title: str = "") -> Figure:
    """A point a drafter: tokens a round over the cost of drafting in target steps (log), grey lines of equal expected
    speed.

    costs: rows of `drafter_summary.costs` of one target and shape.
    """
    figure, axis = plt.subplots(figsize=(9.2, 4.8), layout="constrained")
    look = theme.styles_of(costs["drafter"])
    spent = costs["draft"].clip(lower=CHEAPEST)
    (left, right), top = (0.6 * spent.min(), 1.6 * spent.max()), 1.12 * costs["tokens"].max()
    across = np.geomspace(left, right, 100)
    for speed in LINES:
        axis.plot(across, speed * (1 + across), color=theme.PALE, linewidth=1, zorder=1)
        if 0.7 < speed * (1 + left) < top:
            axis.annotate(f"{speed:g}×", (left, speed * (1 + left)), xytext=(3, 2), textcoords="offset points",
                          color="#777777", fontsize=8)
    for row in costs.assign(draft=spent).sort_values("expected", ascending=False).itertuples():
        style = look[row.drafter]
        axis.plot(row.draft, row.tokens, linestyle="none", marker=style.marker, color=style.colour, markersize=8,
                  markeredgecolor="white", label=f"{row.drafter} ({row.expected:.2f}×)", zorder=3, clip_on=False)
    axis.set(xscale="log", xlim=(left, right), ylim=(0.7, top), xlabel="drafting a round (target steps)",
             ylabel="tokens a round")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    if title:
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
    figure.legend(loc="outside right upper", title="drafter (expected speedup)", alignment="left", title_fontsize=9)
    return figure


def speedups(found: pd.DataFrame, costs: pd.DataFrame, title: str = "") -> Figure:
    """A line a drafter: its measured speedup with the 95 % interval, and hollow the one that its cost lets expect.

    found: rows of `drafter_summary.speedups`, costs: of `drafter_summary.costs`, both of one target and shape.
    """
    both = found.merge(costs[["drafter", "expected"]], on="drafter").sort_values("value").reset_index(drop=True)
    figure, axis = plt.subplots(figsize=(7.4, 1.3 + 0.3 * len(both)), layout="constrained")
    axis.axvline(1, color="#666666", linestyle=":", linewidth=1)
    axis.hlines(both.index, both["low"], both["high"], color=theme.BLUE, linewidth=2.2, alpha=0.45)
    axis.plot(both["value"], both.index, "o", color=theme.BLUE, label="measured")
    axis.plot(both["expected"], both.index, "D", markerfacecolor="none", markeredgecolor=theme.VERMILLION,
              label="expected, if verifying took one step")
    axis.set_yticks(both.index, both["drafter"])
    axis.set_xlabel("speedup over plain decoding")
    axis.set_xlim(left=0)
    if title:
        axis.set_title(title)
    axis.legend(loc="lower right")
    return figure
