"""Figures of the drafter study: the cost of drafting against its gain, expected beside measured speed, and how trained
heads learnt.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lib.lab import theme
from lib.studies.drafters.measure import CONTROLS

MIB = 2**20
LINES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # speedups at which lines of equal expected speed are drawn
CHEAPEST = 0.01  # target steps: cheaper drafters are drawn here, since the axis is logarithmic


def cost_against_gain(costs: pd.DataFrame, title: str = "") -> Figure:
    """One point per drafter: tokens per round over the cost of drafting in target steps (log), with grey lines of equal
    expected speed. costs: `summary.costs` of one target and shape.
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
    axis.set(xscale="log", xlim=(left, right), ylim=(0.7, top), xlabel="drafting per round (target steps)",
             ylabel="tokens per round")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    if title:
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
    figure.legend(loc="outside right upper", title="drafter (expected speedup)", alignment="left", title_fontsize=9)
    return figure


def speedups(measured: pd.DataFrame, costs: pd.DataFrame, title: str = "") -> Figure:
    """One line per drafter: its measured speedup with the 95 % interval, and a hollow mark at the expected one.

    measured: `summary.speedups`; costs: `summary.costs`; both of one target and shape.
    """
    both = measured.merge(costs[["drafter", "expected"]], on="drafter").sort_values("value").reset_index(drop=True)
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


def with_best_trees(best: pd.DataFrame, target: str) -> Figure:
    """One line per drafter, sorted by speed: its measured speedup with its own best tree, and the interval; controls
    are hollow. best: `summary.with_best_shape` of one target.
    """
    rows = best.sort_values("value").reset_index(drop=True)
    figure, axis = plt.subplots(figsize=(7.4, 1.3 + 0.32 * len(rows)), layout="constrained")
    axis.axvline(1, color="#666666", linestyle=":", linewidth=1)
    axis.hlines(rows.index, rows["low"], rows["high"], color=theme.BLUE, linewidth=2.2, alpha=0.45)
    control = rows["drafter"].isin(CONTROLS)
    axis.plot(rows["value"][~control], rows.index[~control], "o", color=theme.BLUE)
    axis.plot(rows["value"][control], rows.index[control], "o", color=theme.GREY, fillstyle="none")
    axis.set_yticks(rows.index, rows["drafter"] + ", " + rows["shape"])
    axis.set(xlabel="speedup over plain decoding", title=target)
    axis.set_xlim(left=0)
    return figure


def head_curves(points: pd.DataFrame) -> Figure:
    """Agreement with the target's favourite on held-out text over training steps: a panel per head, a line per depth.

    points: the table "head_curves" of one target; kinds of text are averaged with equal weight.
    """
    heads = points.groupby("head")
    figure, axes = plt.subplots(1, len(heads), figsize=(1 + 3.1 * len(heads), 3.4), sharey=True, squeeze=False,
                                layout="constrained")
    depths = sorted(points["depth"].unique())
    styles = theme.styles_of(f"{depth} ahead" for depth in depths)
    for axis, (head, curve) in zip(axes[0], heads):
        mean = curve.groupby(["depth", "step"], as_index=False)["agreement"].mean()
        for depth, line in mean.groupby("depth"):
            style = styles[f"{depth} ahead"]
            axis.plot(line["step"], line["agreement"], **style.line, label=f"{depth} ahead")
        axis.set_title(head)
        axis.set_xlabel("training step")
    axes[0, 0].set_ylim(bottom=0)  # of all panels, which share it
    axes[0, 0].set_ylabel("share of tokens on which\nhead and target agree")
    handles = {label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels())}
    ordered = [label for label in styles if label in handles]
    figure.legend([handles[label] for label in ordered], ordered, loc="outside right center")
    return figure


def head_memory(peaks: pd.DataFrame) -> Figure:
    """Peak memory of the losses of a training step by head: the logits of all depths together, and one depth at a time.

    peaks: the table "head_memory" of one target.
    """
    table = peaks.pivot(index="kind", columns="way", values="peak_bytes").sort_values("together")
    depths = peaks.groupby("kind")["depths"].first().to_dict()
    place = np.arange(len(table))
    figure, axis = plt.subplots(figsize=(6.4, 0.6 * len(table) + 1.4), layout="constrained")
    for shift, way, colour in ((-0.2, "together", theme.ORANGE), (0.2, "apart", theme.BLUE)):
        bars = axis.barh(place + shift, table[way] / MIB, height=0.36, color=colour, label=f"depths {way}")
        axis.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
    axis.set_yticks(place, [f"{kind}, {depths[kind]} deep" for kind in table.index])
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    axis.margins(x=0.12)
    axis.set_xlabel("peak memory of the losses of a step (MiB)")
    figure.legend(loc="outside right center")
    return figure
