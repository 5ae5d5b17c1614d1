"""Figures of the advice: what a round costs, speed over budget by batch, and formulas beside replay."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lib.cost.fit import Costs
from lib.lab import theme
from lib.lab.theme import Style
from lib.studies.advice import curves

# A style a line, in this order everywhere; families of shapes keep theirs.
STYLES = {
    curves.OURS: Style(theme.VERMILLION, "X", theme.SOLID),
    **{family: theme.STYLES[family] for family in curves.RIVALS},
}
BY = {
    curves.REPLAY: Style(theme.VERMILLION, "X", theme.SOLID),
    curves.LEVIATHAN: Style(theme.BLUE, "s", theme.DASHED),
    curves.BLOG: Style(theme.GREY, "d", theme.DOTTED),
}
MARKERS = "osDv^P"


def cost_curves(costs: Costs, target: str, drafter: str) -> Figure:
    """Two panels: a check over drafted nodes, a drafter's level over its nodes; a line a batch, at the shortest prefix.

    Points are measured medians, lines what was fitted. The level's cost comes from several shapes and has no points.
    """
    rows = costs.rows[(costs.rows["target"] == target) & (costs.rows["drafter"] == drafter)]
    batches, prefix = sorted(rows["batch"].unique()), rows["prefix"].min()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.2, 3.8), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(batches)))
    for at, (batch, colour) in enumerate(zip(batches, colours)):
        cost = costs.at(target, drafter, batch=batch, prefix=prefix)
        own = rows[(rows["batch"] == batch) & (rows["prefix"] == prefix)]
        nodes, widths = np.arange(own["nodes"].max() + 1), np.arange(1, int(cost.level.at[-1]) + 1)
        left.plot(nodes, 1000 * cost.check(nodes), color=colour)
        left.scatter(own["nodes"], own["verify_ms"] + own["commit_ms"], color=colour, marker=MARKERS[at % 6], zorder=3)
        right.plot(widths, 1000 * cost.level(widths), color=colour, marker=MARKERS[at % 6], markevery=[0, -1],
                   label=f"batch {batch}")
    left.set(title=f"Check by {target}", xlabel="drafted nodes a sequence", ylabel="milliseconds")
    right.set(title=f"A level of {drafter}", xlabel="nodes of the level a sequence", ylabel="milliseconds")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
    figure.legend(loc="outside right upper")
    return figure


def speed_over_budget(rows: pd.DataFrame) -> Figure:
    """A panel a batch: predicted speedup over budget by family, with 95 % bands of the first and the last family.

    rows: the table "advice_budgets" of one drafter. A ring marks the best budget of the tree for the hardware.
    """
    batches = list(rows["batch"].unique())
    figure, axes = plt.subplots(1, len(batches), figsize=(3.9 * len(batches) + 1.8, 3.9), squeeze=False, sharey=True,
                                layout="constrained")
    for axis, batch in zip(axes.flat, batches):
        panel = rows[rows["batch"] == batch]
        for family, style in STYLES.items():
            line = panel[panel["family"] == family].sort_values("budget")
            axis.plot(line["budget"], line["speedup"], **style.line, label=family,
                      zorder=3 if family == curves.OURS else 2)
            if family in ("chain", curves.OURS):
                axis.fill_between(line["budget"], line["speedup_low"], line["speedup_high"], color=style.colour,
                                  alpha=0.13, linewidth=0)
        best = best_budget(panel)
        axis.plot(best["budget"], best["speedup"], "o", markersize=13, fillstyle="none", color="black")
        axis.annotate(f"n = {best['budget']}", (best["budget"], best["speedup"]), xytext=(8, 8), ha="left",
                      textcoords="offset points", fontsize=9)
        _budget_axis(axis, sorted(panel["budget"].unique()))
        axis.set(title=f"batch {batch}", xlabel="budget (drafted nodes)")
    axes[0, 0].set_ylabel("predicted speedup\nover plain decoding")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def best_budget(rows: pd.DataFrame) -> pd.Series:
    """The row of the tree for the hardware that is fastest."""
    own = rows[rows["family"] == curves.OURS]
    return own.loc[own["speedup"].idxmax()]


def speed_by_size(rows: pd.DataFrame) -> Figure:
    """A panel a batch: predicted speedup over budget with the costs of each pair, of the fastest trees (solid, with
    95 % bands) and of chains (dotted). rows: the table "advice_sizes".
    """
    batches, priced = list(rows["batch"].unique()), list(rows["costs"].unique())
    figure, axes = plt.subplots(1, len(batches), figsize=(3.9 * len(batches) + 3.2, 3.9), squeeze=False, sharey=True,
                                layout="constrained")
    colours = (theme.VERMILLION, theme.BLUE, theme.GREEN, theme.PURPLE, theme.ORANGE, theme.SKY)
    for axis, batch in zip(axes.flat, batches):
        for at, name in enumerate(priced):
            own = rows[(rows["batch"] == batch) & (rows["costs"] == name)].sort_values("budget")
            look = dict(color=colours[at % len(colours)], marker=MARKERS[at % len(MARKERS)])
            tree, chain = (own[own["family"] == family] for family in (curves.OURS, "chain"))
            axis.plot(tree["budget"], tree["speedup"], **look, label=name.replace("|", "\ndrafted by "))
            axis.plot(chain["budget"], chain["speedup"], **look, linestyle=":", fillstyle="none")
            axis.fill_between(tree["budget"], tree["speedup_low"], tree["speedup_high"], color=look["color"],
                              alpha=0.13, linewidth=0)
        _budget_axis(axis, sorted(rows["budget"].unique()))
        axis.set(title=f"batch {batch}", xlabel="budget (drafted nodes)")
    axes[0, 0].set_ylabel("predicted speedup\nover plain decoding")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def formulas(rows: pd.DataFrame) -> Figure:
    """A panel a batch: the speedup of chains over their length as each source has it; from the table
    "advice_formulas" of one drafter.
    """
    batches = list(rows["batch"].unique())
    figure, axes = plt.subplots(1, len(batches), figsize=(3.9 * len(batches) + 2.2, 3.7), squeeze=False, sharey=True,
                                layout="constrained")
    for axis, batch in zip(axes.flat, batches):
        for by, style in BY.items():
            line = rows[(rows["batch"] == batch) & (rows["by"] == by)].sort_values("length").dropna(subset="speedup")
            axis.plot(line["length"], line["speedup"], **style.line, label=by)
        _budget_axis(axis, sorted(rows["length"].unique()))
        axis.set(title=f"batch {batch}", xlabel="length of the chain (tokens)")
    axes[0, 0].set_ylabel("speedup over plain decoding")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def predicted_and_measured(rows: pd.DataFrame) -> Figure:
    """Predicted over measured tokens a second, a colour a batch, intervals as whiskers; the dashed line is agreement,
    the band 25 % to either side. rows: as `speed_prediction.compare` gives them.
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
    axis.set(xscale="log", yscale="log", xlabel="measured tokens a second", ylabel="predicted tokens a second",
             xlim=ends, ylim=ends)
    for side in (axis.xaxis, axis.yaxis):  # plain numbers, where few powers of ten are in sight
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        side.set_minor_locator(NullLocator())
    axis.legend(loc="upper left")
    return figure


def _budget_axis(axis, budgets: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, budgets)
    axis.minorticks_off()
    axis.axhline(1.0, color="#666666", linewidth=1, linestyle=":")
