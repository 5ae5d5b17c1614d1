"""Figures of the advice: the cost of a round, speed over budget by batch and by pair, and formulas beside replay."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.cost.fit import Costs
from lib.lab import theme
from lib.lab.theme import Style
from lib.studies.advice import measure

# One style per line, in this order in every figure; families of shapes keep theirs.
STYLES = {
    measure.OURS: Style(theme.VERMILLION, "X", theme.SOLID),
    **{family: theme.STYLES[family] for family in measure.RIVALS},
}
BY = {
    measure.REPLAY: Style(theme.VERMILLION, "X", theme.SOLID),
    measure.LEVIATHAN: Style(theme.BLUE, "s", theme.DASHED),
    measure.BLOG: Style(theme.GREY, "d", theme.DOTTED),
}
MARKERS = "osDv^P"


def cost_curves(costs: Costs, target: str, drafter: str) -> Figure:
    """Two panels: the check over drafted nodes, the drafter's level over its nodes; one line per batch, at the shortest
    prefix.

    Points are measured medians, lines the fitted curves. The cost of a level comes from several shapes and has no
    points.
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
    left.set(title=f"Check by {target}", xlabel="drafted nodes per sequence", ylabel="milliseconds")
    right.set(title=f"A level of {drafter}", xlabel="nodes of the level per sequence", ylabel="milliseconds")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
    figure.legend(loc="outside right upper")
    return figure


def speed_over_budget(rows: pd.DataFrame) -> Figure:
    """One panel per batch: predicted speedup over budget by family, with 95 % bands of the chain and of the fastest
    trees. A ring marks the best budget of the fastest trees. rows: the table "advice_budgets" of one drafter.
    """
    batches = list(rows["batch"].unique())
    figure, axes = plt.subplots(1, len(batches), figsize=(3.9 * len(batches) + 1.8, 3.9), squeeze=False, sharey=True,
                                layout="constrained")
    for axis, batch in zip(axes.flat, batches):
        panel = rows[rows["batch"] == batch]
        for family, style in STYLES.items():
            line = panel[panel["family"] == family].sort_values("budget")
            axis.plot(line["budget"], line["speedup"], **style.line, label=family,
                      zorder=3 if family == measure.OURS else 2)
            if family in ("chain", measure.OURS):
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
    """The row of the fastest tree over all budgets."""
    own = rows[rows["family"] == measure.OURS]
    return own.loc[own["speedup"].idxmax()]


def speed_by_size(rows: pd.DataFrame) -> Figure:
    """One panel per batch: predicted speedup over budget with the costs of each pair, of the fastest trees (solid, with
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
            tree, chain = (own[own["family"] == family] for family in (measure.OURS, "chain"))
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
    """One panel per batch: the speedup of chains over their length by source. rows: the table "advice_formulas" of one
    drafter.
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


def _budget_axis(axis, budgets: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, budgets)
    axis.minorticks_off()
    axis.axhline(1.0, color="#666666", linewidth=1, linestyle=":")
