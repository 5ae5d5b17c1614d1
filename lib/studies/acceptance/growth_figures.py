"""Figures of the growth study: what grown trees gain beside static ones, what they cost to draft, who leads."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.lab.theme import GREY, styles_of
from lib.studies.acceptance.growth import BASE

GAIN, COST = "acceptance length (tokens a round)", "drafter's forwards a round"


def gain_and_cost(found: pd.DataFrame, spent: pd.DataFrame, banded: Sequence[str] = ()) -> Figure:
    """Left acceptance length, right the drafter's forwards, over the budget; a line a family, grown ones dash-dotted.

    found, spent: `growth_study.lengths` and `forwards` of one setting. banded: families whose intervals are drawn.
    """
    figure, axes = plt.subplots(1, 2, figsize=(11.2, 4.4), sharex=True, layout="constrained")
    styles = styles_of(found["family"])
    for axis, rows, label in zip(axes, (found, spent), (GAIN, COST)):
        for family, line in rows.groupby("family", sort=False):
            line, style = line.sort_values("budget"), styles[family]
            axis.plot(line["budget"], line["value"], **style.line, label=family, markeredgecolor="white",
                      markeredgewidth=0.6)
            if family in banded:
                axis.fill_between(line["budget"], line["low"], line["high"], color=style.colour, alpha=0.15,
                                  linewidth=0)
        _budget_axis(axis, found["budget"])
        axis.set_ylabel(label)
    axes[1].set_yscale("log", base=2)
    axes[1].yaxis.set_major_formatter("{x:g}")
    handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1]))
    ends = found[found["budget"] == found["budget"].max()].sort_values("value", ascending=False)["family"]
    figure.legend([handles[family] for family in ends], list(ends), loc="outside right center")
    return figure


def lead_over_static(rows: pd.DataFrame) -> Figure:
    """What each rule gains over the best static family of its budget: a line a rule, intervals as whiskers.

    rows: `growth_study.differences` of one setting. Right of zero the rule wins.
    """
    families, budgets = list(dict.fromkeys(rows["family"])), sorted(rows["budget"].unique())
    figure, axis = plt.subplots(figsize=(7.4, 0.34 * len(families) * len(budgets) + 1.4), layout="constrained")
    styles = styles_of(families)
    step = len(families) + 1
    for row in rows.itertuples():
        at = budgets.index(row.budget) * step + families.index(row.family)
        style = styles[row.family]
        axis.plot([row.low, row.high], [at, at], color=style.colour, linewidth=1.6)
        axis.plot(row.value, at, marker=style.marker, color=style.colour, linestyle="none",
                  label=row.family if row.budget == budgets[0] else None)
    axis.axvline(0, color=GREY, linewidth=1, zorder=0)
    middle = (len(families) - 1) / 2
    axis.set_yticks([index * step + middle for index in range(len(budgets))], [f"{budget} nodes" for budget in budgets])
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    axis.invert_yaxis()
    axis.set_xlabel(f"acceptance length less that of the {BASE} family (tokens a round)")
    figure.legend(loc="outside right center")
    return figure


def _budget_axis(axis: Axes, budgets) -> None:
    ticks = np.unique(budgets)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("budget (drafted nodes)")
