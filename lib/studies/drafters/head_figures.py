"""Figures of how heads were trained: what they agree with by depth as training goes on, and the memory it takes."""

from typing import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib.lab.theme import BLUE, ORANGE, styles_of

MIB = 2**20


def curves(points: Mapping[str, pd.DataFrame]) -> Figure:
    """Agreement with the target's favourite on held-out text over training steps: a panel a head, a line a depth.

    points: by head, the curve.csv that training wrote; kinds of text are averaged with equal weight.
    """
    figure, axes = plt.subplots(1, len(points), figsize=(1 + 3.1 * len(points), 3.4), sharey=True, squeeze=False,
                                layout="constrained")
    depths = sorted({depth for curve in points.values() for depth in curve["depth"]})
    styles = styles_of(f"{depth} ahead" for depth in depths)
    for axis, (head, curve) in zip(axes[0], points.items()):
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


def memory(peaks: pd.DataFrame) -> Figure:
    """Peak memory of a training step's losses by head, all depths' logits together beside one depth's at a time.

    peaks: `head_memory.peaks`.
    """
    table = peaks.pivot(index="kind", columns="way", values="peak_bytes").sort_values("together")
    depths = peaks.groupby("kind")["depths"].first().to_dict()
    place = np.arange(len(table))
    figure, axis = plt.subplots(figsize=(6.4, 0.6 * len(table) + 1.4), layout="constrained")
    for shift, way, colour in ((-0.2, "together", ORANGE), (0.2, "apart", BLUE)):
        bars = axis.barh(place + shift, table[way] / MIB, height=0.36, color=colour, label=f"depths {way}")
        axis.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
    axis.set_yticks(place, [f"{kind}, {depths[kind]} deep" for kind in table.index])
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    axis.margins(x=0.12)
    axis.set_xlabel("peak memory of a step's losses (MiB)")
    figure.legend(loc="outside right center")
    return figure
