"""Figures of the study of rules: which rules are lossless, what lossy rules gain, and which rule accepts most."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab import theme
from lib.studies.rules.measure import EXACT, label

ROUNDING = 1e-17  # drawn in place of a distance of 0, which a logarithmic axis cannot show
LIGHT = (theme.SKY, theme.ORANGE, theme.PURPLE, theme.GREY)  # colours with dark letters
FILLED = "random"  # the kind of languages whose markers are filled


def deviations(proof: pd.DataFrame) -> Figure:
    """From the table "rules_proof": the largest distance of every rule with every proposal, on a logarithmic axis.

    Filled markers: random languages; hollow ones: hard languages. Distances left of the line are rounding.
    """
    worst = proof.groupby(["lossless", "rule", "proposal", "kind"], sort=False)["worst"].max().reset_index()
    worst = worst.sort_values("lossless", kind="stable")  # lossless rules last, at the top
    names, styles = list(dict.fromkeys(zip(worst["rule"], worst["proposal"]))), theme.styles_of(worst["rule"])
    figure, axis = plt.subplots(figsize=(8.2, 0.27 * len(names) + 1.3), layout="constrained")
    for row in worst.itertuples():
        style = styles[row.rule]
        axis.plot(
            max(row.worst, ROUNDING), names.index((row.rule, row.proposal)), marker=style.marker, markersize=8,
            markeredgecolor=style.colour, markerfacecolor=style.colour if row.kind == FILLED else "none", linestyle="")
    axis.axvline(EXACT, color="#666666", linestyle=":")
    axis.set(xscale="log", xlabel="largest distance from the target's law", xlim=(ROUNDING / 3, 3),
             ylim=(-0.7, len(names) - 0.3))
    axis.set_yticks(range(len(names)), [label(*name) for name in names])
    lossy = worst[~worst["lossless"]][["rule", "proposal"]].drop_duplicates()
    axis.axhspan(-0.7, len(lossy) - 0.5, color=theme.PALE, alpha=0.45, zorder=0)
    axis.text(ROUNDING, -0.4, "lossy", color="#555555", va="bottom")
    return figure


def accepted_over_distance(rows: pd.DataFrame, base: str) -> Figure:
    """From the table "rules_exact": accepted length over distance; one line per rule through the temperatures, one
    panel per shape. Dotted lines: the accepted length of the lossless rule `base` at each temperature.

    Larger markers are higher temperatures.
    """
    shapes, temperatures = list(rows["shape"].unique()), sorted(rows["temperature"].unique())
    mean = rows.groupby(["shape", "rule", "temperature"], sort=False)[["accepted", "distance"]].mean().reset_index()
    sizes = np.linspace(25, 110, len(temperatures))
    figure, axes = plt.subplots(
        1, len(shapes), figsize=(4.2 * len(shapes) + 1.8, 4.0), squeeze=False, layout="constrained")
    for axis, shape in zip(axes.flat, shapes):
        for rule, line in mean[mean["shape"] == shape].groupby("rule", sort=False):
            style, line = theme.STYLES[rule], line.sort_values("temperature")
            axis.plot(line["distance"], line["accepted"], color=style.colour, linestyle=style.dash, linewidth=1.3)
            axis.scatter(line["distance"], line["accepted"], s=sizes, color=style.colour, marker=style.marker, zorder=3)
        for value in mean[(mean["shape"] == shape) & (mean["rule"] == base)]["accepted"]:
            axis.axhline(value, color=theme.STYLES[base].colour, linewidth=0.7, linestyle=":")
        axis.set(title=shape, xlabel="distance from the target's law", xlim=(-0.03, None))
    axes[0, 0].set_ylabel("accepted length (tokens per round)")
    handles = [plt.Line2D([], [], **theme.STYLES[rule].line, label=rule) for rule in mean["rule"].unique()]
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def which_rule(best: pd.DataFrame) -> Figure:
    """From `findings.best_rules`: one cell for each proposal, promise and temperature, with the rule that accepts most,
    its accepted length, and the distance of a lossy rule."""
    temperatures = sorted(best["temperature"].unique())
    order = best.assign(lossy=~best["lossless"]).sort_values(["lossy", "proposal"], kind="stable")
    lines = list(dict.fromkeys(zip(order["lossy"], order["proposal"])))
    figure, axis = plt.subplots(
        figsize=(1.75 * len(temperatures) + 3.2, 0.62 * len(lines) + 1.1), layout="constrained")
    for row in order.itertuples():
        x, y = temperatures.index(row.temperature), lines.index((row.lossy, row.proposal))
        colour = theme.STYLES[row.rule].colour
        axis.add_patch(plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, linewidth=0))
        wrong = f", wrong by {row.distance:.2f}" if row.lossy else ""
        axis.text(x, y, f"{row.rule}\n{row.accepted:.2f}{wrong}", ha="center", va="center", fontsize=8.5,
                  color="black" if colour in LIGHT else "white")
    promises = {True: "lossy", False: "lossless"}
    axis.set_yticks(range(len(lines)), [f"{name.replace('_', ' ')}\n{promises[lossy]}" for lossy, name in lines])
    axis.set_xticks(range(len(temperatures)), [f"{value:g}" for value in temperatures])
    axis.set(xlim=(-0.55, len(temperatures) - 0.45), ylim=(len(lines) - 0.45, -0.55), xlabel="temperature")
    axis.grid(False)
    axis.tick_params(length=0)
    return figure
