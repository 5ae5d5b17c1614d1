"""Figures of the advice: the cost of a check, speed over budget by drafter and by pair, and formulas beside replay."""

import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

from lib.cost.recommendation import Recommendation
from lib.cost.recommending import RULER
from lib.cost.round_cost import CostTable
from lib.lab import charts, theme
from lib.lab.theme import Style
from lib.studies.advice import measure

BY = {
    measure.REPLAY: Style(theme.VERMILLION, "X", theme.SOLID),
    measure.LEVIATHAN: Style(theme.BLUE, "s", theme.DASHED),
    measure.BLOG: Style(theme.GREY, "d", theme.DOTTED),
}
MARKERS = "osDv^P"
TITLE = 24  # characters of a line of a panel's title
MAPPED = 0.4  # ratios beyond 1 -+ this have the same colour
COLOURS = (theme.VERMILLION, theme.BLUE, theme.GREEN, theme.PURPLE, theme.ORANGE, theme.SKY)


def check_curves(costs: CostTable, target: str) -> Figure:
    """The check over draft nodes in plain rounds, a line per batch: points are measured, lines are fitted."""
    rows = costs.rows[(costs.rows["target"] == target) & (costs.rows["drafter"] == RULER) & (costs.rows["nodes"] > 0)]
    figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for (batch, own), colour, marker in zip(rows.groupby("batch"), COLOURS, MARKERS):
        price = costs.at(target, RULER, batch=batch)
        nodes = np.arange(1, own["nodes"].max() + 1)
        axis.plot(nodes, price.check(nodes) / price.plain, color=colour, label=f"batch {batch}")
        axis.scatter(own["nodes"], (own["verify_ms"] + own["commit_ms"]) / (1000 * price.plain), color=colour,
                     marker=marker, zorder=3)
    _budget_axis(axis, rows["nodes"])
    axis.set(xlabel="draft nodes per sequence", ylabel="time of a check (plain rounds)")
    axis.set_ylim(bottom=0)
    charts.name_ends(axis)
    return figure


def speed_over_budget(candidates: pd.DataFrame, made: Recommendation) -> Figure:
    """One panel per batch: predicted speedup over budget of each drafter's fastest shape, with a 95 % band of the
    recommended one's; the star with its whisker is the measured speedup of the recommendation.

    candidates: the table "advice_candidates".
    """
    drafters = list(dict.fromkeys(candidates["drafter"]))
    figure, axes = _panels(candidates, 2.4, "budget (draft nodes)", "predicted speedup\nover plain decoding")
    for batch, axis in axes.items():
        rows, own = candidates[candidates["batch"] == batch], made.at(batch)
        for at, drafter in enumerate(drafters):
            line = fastest(rows[rows["drafter"] == drafter])
            look = dict(color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)])
            axis.plot(line["budget"], line["speedup"], **look, label=drafter, markersize=4,
                      linestyle=(theme.SOLID, theme.DASHED, theme.DOTTED)[at // len(COLOURS) % 3])
            if drafter.partition(" ")[0] == own.drafter:
                axis.fill_between(line["budget"], line["speedup_low"], line["speedup_high"], color=look["color"],
                                  alpha=0.13, linewidth=0)
        if not own.is_plain:
            axis.vlines(own.budget, own.speedup.low, own.speedup.high, color="black", linewidth=1.5, zorder=4)
            axis.plot(own.budget, own.speedup.value, "*", color="black", markersize=13, zorder=5)
        _budget_axis(axis, rows["budget"])
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper")
    return figure


def predicted_and_measured(errors: pd.DataFrame) -> Figure:
    """Measured over predicted speedup with its interval, a point per case; errors: the table "advice_errors"."""
    figure, axis = plt.subplots(figsize=(5.4, 4.2), layout="constrained")
    known = errors[["predicted", "measured", "measured_low", "measured_high"]]
    ends = np.array([0.94 * known.min().min(), 1.06 * known.max().max()])
    axis.plot(ends, ends, color="#666666", linewidth=1, linestyle=":")
    axis.fill_between(ends, 0.9 * ends, 1.1 * ends, color="#666666", alpha=0.1, linewidth=0, label="within 10 %")
    for (batch, rows), colour, marker in zip(errors.groupby("batch"), COLOURS, MARKERS):
        axis.scatter(rows["predicted"], rows["measured"], color=colour, marker=marker, label=f"batch {batch}", zorder=3)
        axis.vlines(rows["predicted"], rows["measured_low"], rows["measured_high"], color=colour, linewidth=1)
    axis.set(xlim=ends, ylim=ends, xlabel="predicted speedup over plain decoding", ylabel="measured", aspect="equal")
    axis.legend(loc="upper left")
    return figure


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each budget the fastest candidate, by budget."""
    return rows.loc[rows.groupby("budget")["speedup"].idxmax()].sort_values("budget")


def speed_by_size(rows: pd.DataFrame) -> Figure:
    """One panel per batch: predicted speedup over budget with the costs of each pair, of the fastest drafter's shapes
    (solid, with 95 % bands) and chains (dotted). rows: the table "advice_sizes".
    """
    figure, axes = _panels(rows, 3.2, "budget (draft nodes)", "predicted speedup\nover plain decoding")
    for batch, axis in axes.items():
        for at, (name, own) in enumerate(rows[rows["batch"] == batch].groupby("costs", sort=False)):
            look = dict(color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)])
            own = own[own["drafter"] == own.loc[own["speedup"].idxmax(), "drafter"]]
            tree, chain = fastest(own), fastest(own[own["chain"]])
            axis.plot(tree["budget"], tree["speedup"], **look, label=name.replace("|", "\ndrafted by "))
            axis.plot(chain["budget"], chain["speedup"], **look, linestyle=":", fillstyle="none")
            axis.fill_between(tree["budget"], tree["speedup_low"], tree["speedup_high"], color=look["color"],
                              alpha=0.13, linewidth=0)
        _budget_axis(axis, rows["budget"])
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper")
    return figure


def tree_or_chain(rows: pd.DataFrame, panels: dict[str, pd.DataFrame]) -> Figure:
    """A panel of drafters by budgets for each part of the table "advice_map": the speed of the fastest tree over that
    of the fastest chain; a dot where the tree is faster beyond its interval.
    """
    drafters, budgets = list(dict.fromkeys(rows["drafter"])), sorted(rows["budget"].unique())
    columns = -(-len(panels) // 2) if len(panels) > 3 else len(panels)
    size = 1.6 + 0.34 * len(budgets) * columns, (0.9 + 0.25 * len(drafters)) * -(-len(panels) // columns)
    figure, axes = plt.subplots(-(-len(panels) // columns), columns, figsize=size, squeeze=False, sharey=True,
                                layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, own) in zip(axes.flat, panels.items()):
        wide = own.pivot(index="drafter", columns="budget", values="over_chain").reindex(drafters, columns=budgets)
        sure = own.pivot(index="drafter", columns="budget", values="over_chain_low").reindex(drafters, columns=budgets)
        image = axis.imshow(wide, cmap="RdBu", norm=CenteredNorm(1.0, MAPPED), aspect="auto")
        for row, column in np.argwhere(sure.to_numpy() > 1):
            axis.plot(column, row, "o", color="black", markersize=3)
        axis.set_xticks(range(len(budgets)), budgets, fontsize=8)
        axis.set_yticks(range(len(drafters)), drafters, fontsize=8)
        axis.set_title("\n".join(textwrap.fill(line, TITLE) for line in title.splitlines()), fontsize=9)
        axis.grid(visible=False)
    figure.supxlabel("budget (draft nodes)", fontsize=9)
    figure.colorbar(image, ax=axes, label="fastest tree over\nfastest chain", extend="both")
    return figure


def formulas(rows: pd.DataFrame) -> Figure:
    """One panel per batch: the speedup of chains over their length by source. rows: the table "advice_formulas"."""
    figure, axes = _panels(rows, 2.2, "length of the chain (tokens)", "speedup over plain decoding")
    for batch, axis in axes.items():
        for by, style in BY.items():
            line = rows[(rows["batch"] == batch) & (rows["by"] == by)].sort_values("length").dropna(subset="speedup")
            axis.plot(line["length"], line["speedup"], **style.line, label=by)
        axis.axhline(1.0, color="#666666", linewidth=1, linestyle=":")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper")
    return figure


def _panels(rows: pd.DataFrame, beside: float, x_label: str, y_label: str) -> tuple[Figure, dict[int, Axes]]:
    """A row of panels with a common speed axis, by batch, and room of this many inches for the legend."""
    batches = sorted(rows["batch"].unique())
    figure, axes = plt.subplots(1, len(batches), figsize=(3.7 * len(batches) + beside, 3.8), squeeze=False, sharey=True,
                                layout="constrained")
    for axis, batch in zip(axes[0], batches):
        axis.set(title=f"batch {batch}", xlabel=x_label)
    axes[0, 0].set_ylabel(y_label)
    return figure, dict(zip(batches, axes[0]))


def _budget_axis(axis: Axes, budgets: pd.Series) -> None:
    """Budgets on a logarithmic axis with powers of two as ticks, and a line at plain decoding."""
    ticks = [2**power for power in range(int(budgets.max()).bit_length())]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, ticks)
    axis.minorticks_off()
    axis.axhline(1.0, color="#666666", linewidth=1, linestyle=":")
