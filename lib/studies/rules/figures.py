"""Figures of the study of rules: what is lossless, what lossy rules buy, and which rule to take."""

from typing import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab import theme
from lib.studies.rules.measure import EXACT, label

ROUNDING = 1e-17  # stands for a distance of exactly 0, which a logarithm has no place for
LIGHT = (theme.SKY, theme.ORANGE, theme.PURPLE, theme.GREY)  # colours that want dark letters
KINDS = {"random": "full", "hard": "none"}  # how a marker is filled


def deviations(proof: pd.DataFrame) -> Figure:
    """From the table "rules_proof": the worst distance of every rule with every proposal, on a logarithmic axis.

    Full markers: random languages; hollow ones: hard languages. Left of the line is rounding.
    """
    worst = proof.groupby(["lossless", "rule", "proposal", "kind"], sort=False)["worst"].max().reset_index()
    worst = worst.sort_values("lossless", kind="stable")  # lossless ones last, which is on top
    names = list(dict.fromkeys(zip(worst["rule"], worst["proposal"])))
    figure, axis = plt.subplots(figsize=(8.2, 0.27 * len(names) + 1.3), layout="constrained")
    for row in worst.itertuples():
        style = theme.STYLES[row.rule]
        filled = style.colour if KINDS[row.kind] == "full" else "none"
        axis.plot(
            max(row.worst, ROUNDING), names.index((row.rule, row.proposal)),
            marker=style.marker, markersize=8, markeredgecolor=style.colour, markerfacecolor=filled, linestyle="",
        )
    axis.axvline(EXACT, color="#666666", linestyle=":")
    axis.set(xscale="log", xlabel="largest distance from the target's law", ylim=(-0.7, len(names) - 0.3))
    axis.set_xlim(ROUNDING / 3, 3)
    axis.set_yticks(range(len(names)), [label(*name) for name in names])
    axis.axhspan(-0.7, len(set(names) - _lossless(worst)) - 0.5, color=theme.PALE, alpha=0.45, zorder=0)
    axis.text(ROUNDING, -0.4, "lossy", color="#555555", va="bottom")
    return figure


def _lossless(worst: pd.DataFrame) -> set[tuple[str, str]]:
    kept = worst[worst["lossless"]]
    return set(zip(kept["rule"], kept["proposal"]))


def bought(rows: pd.DataFrame, base: str = "traversal") -> Figure:
    """From the table "rules_exact": accepted length over distance, a line a rule through the temperatures, a panel a
    shape; the rule `base`, at distance 0, is what a lossy rule has to beat at the same temperature.

    The larger a marker, the higher the temperature.
    """
    shapes, temperatures = list(rows["shape"].unique()), sorted(rows["temperature"].unique())
    mean = rows.groupby(["shape", "rule", "temperature"], sort=False)[["accepted", "distance"]].mean().reset_index()
    sizes = np.linspace(25, 110, len(temperatures))
    figure, axes = plt.subplots(
        1, len(shapes), figsize=(4.2 * len(shapes) + 1.8, 4.0), squeeze=False, layout="constrained"
    )
    for axis, shape in zip(axes.flat, shapes):
        for rule, line in mean[mean["shape"] == shape].groupby("rule", sort=False):
            style, line = theme.STYLES[rule], line.sort_values("temperature")
            axis.plot(line["distance"], line["accepted"], color=style.colour, linestyle=style.dash, linewidth=1.3)
            axis.scatter(line["distance"], line["accepted"], s=sizes, color=style.colour, marker=style.marker, zorder=3)
        for value in mean[(mean["shape"] == shape) & (mean["rule"] == base)]["accepted"]:
            axis.axhline(value, color=theme.STYLES[base].colour, linewidth=0.7, linestyle=":")
        axis.set(title=shape, xlabel="distance from the target's law", xlim=(-0.03, None))
    axes[0, 0].set_ylabel("accepted length (tokens a round)")
    handles = [plt.Line2D([], [], **theme.STYLES[rule].line, label=rule) for rule in mean["rule"].unique()]
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def which_rule(best: pd.DataFrame, temperatures: Sequence[float] | None = None) -> Figure:
    """From `rule_study.best_rules`: a cell a proposal, promise and temperature, with the rule that accepts most there,
    its accepted length, and for lossy ones the distance that it costs."""
    temperatures = list(temperatures or sorted(best["temperature"].unique()))
    order = best.assign(lossy=~best["lossless"]).sort_values(["lossy", "proposal"], kind="stable")
    lines = list(dict.fromkeys(zip(order["lossy"], order["proposal"])))
    figure, axis = plt.subplots(
        figsize=(1.75 * len(temperatures) + 3.2, 0.62 * len(lines) + 1.1), layout="constrained"
    )
    for row in order.itertuples():
        x, y = temperatures.index(row.temperature), lines.index((row.lossy, row.proposal))
        colour = theme.STYLES[row.rule].colour
        axis.add_patch(plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, linewidth=0))
        paid = f", wrong by {row.distance:.2f}" if row.lossy else ""
        axis.text(
            x, y, f"{row.rule}\n{row.accepted:.2f}{paid}", ha="center", va="center", fontsize=8.5,
            color="black" if colour in LIGHT else "white",
        )
    promises = {True: "lossy", False: "lossless"}
    axis.set_yticks(range(len(lines)), [f"{name.replace('_', ' ')}\n{promises[lossy]}" for lossy, name in lines])
    axis.set_xticks(range(len(temperatures)), [f"{value:g}" for value in temperatures])
    axis.set(xlim=(-0.55, len(temperatures) - 0.45), ylim=(len(lines) - 0.45, -0.55), xlabel="temperature")
    axis.grid(False)
    axis.tick_params(length=0)
    return figure
