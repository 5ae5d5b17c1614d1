"""The cost explorer: what a check costs by the number of nodes, measured or typed, and the speed that follows."""

from html import escape
from io import BytesIO

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from lib.cost.round_cost import RULER, CostTable, Curve
from lib.lab import charts, theme


class CostExplorer:
    """Controls for batch, drafter, the most nodes of a tree and the cost of a check, above the speeds that follow.

    candidates: the table "advice_candidates"; costs: those of the same target. The control `check` holds milliseconds
    by draft nodes, "0:10.6, 8:14.4, 64:54", at first those that were measured; with other values the speeds are those
    of a machine that takes these times, on which drafting takes as long as here. Nodes beyond the last continue its
    line. Show `view`; errors appear in `message`, and the last picture stays.
    """

    def __init__(self, candidates: pd.DataFrame, costs: CostTable, target: str):
        self.candidates, self.costs, self.target = candidates, costs, target
        once = {"continuous_update": False}
        batches, drafters = sorted(candidates["batch"].unique().tolist()), list(dict.fromkeys(candidates["drafter"]))
        self.batch = ipywidgets.Dropdown(options=batches, description="batch")
        self.drafter = ipywidgets.Dropdown(options=drafters, description="drafter")
        self.nodes = ipywidgets.IntSlider(int(candidates["budget"].max()), 1, int(candidates["budget"].max()),
                                          description="most nodes", layout=ipywidgets.Layout(width="420px"), **once)
        self.check = ipywidgets.Text(description="check (ms)", layout=ipywidgets.Layout(width="760px"), **once)
        self.message, self.numbers = ipywidgets.HTML(), ipywidgets.HTML()
        self.picture = ipywidgets.Image(format="png")
        self.view = ipywidgets.VBox([ipywidgets.HBox([self.batch, self.drafter, self.nodes]), self.check, self.message,
                                     self.numbers, self.picture])
        self._take_measured()
        self.batch.observe(self._take_measured, names="value")
        for control in (self.drafter, self.nodes, self.check):
            control.observe(self._refresh, names="value")
        self._refresh()

    def speeds(self) -> pd.DataFrame:
        """The candidates at the batch with `speed`, times plain decoding, at the typed cost of a check. ValueError for
        a cost that cannot be read.
        """
        typed = curve_of(self.check.value)
        price = self.costs.at(self.target, RULER, batch=self.batch.value)
        rows = self.candidates[self.candidates["batch"] == self.batch.value]
        drafting = (rows["round_ms"] - 1000 * price.check(rows["budget"])).clip(lower=0)
        # A drafter that often finds nothing checks fewer nodes than its tree has: as many as its rounds' time says.
        checked = np.minimum(rows["budget"], np.interp(rows["round_ms"] / 1000, price.check.seconds, price.check.at))
        return rows.assign(speed=rows["tokens"] * typed(0) / (drafting + typed(checked)))

    def _measured(self) -> pd.DataFrame:
        """Milliseconds of a check by nodes, as they were calibrated at the batch."""
        rows = self.costs.rows
        rows = rows[(rows["target"] == self.target) & (rows["drafter"] == RULER) & (rows["batch"] == self.batch.value)]
        times = (rows["verify_ms"] + rows["commit_ms"]).where(rows["nodes"] > 0, rows["round_ms"])
        return times.groupby(rows["nodes"]).median().rename("ms").reset_index()

    def _take_measured(self, change=None) -> None:
        """Fills in the measured cost; the picture follows."""
        rows = self._measured()
        before = self.check.value
        self.check.value = ", ".join(f"{row.nodes:.0f}:{row.ms:.2f}" for row in rows.itertuples())
        if change and self.check.value == before:
            self._refresh()

    def _refresh(self, change=None) -> None:
        try:
            rows = self.speeds()
            drawn, told = self._draw(rows), self._tell(rows)
        except Exception as error:  # a callback's traceback would only appear in a log
            self.message.value = f'<span style="color:#B00020">{escape(str(error))}</span>'
            return
        png = BytesIO()
        with rc_context({"savefig.bbox": "standard"}):
            drawn.savefig(png, format="png", dpi=90)
        plt.close(drawn)
        self.message.value, self.numbers.value, self.picture.value = "", told, png.getvalue()

    def _tell(self, rows: pd.DataFrame) -> str:
        """The fastest tree within the limits, and the fastest of all."""
        fitting = rows[(rows["drafter"] == self.drafter.value) & (rows["budget"] <= self.nodes.value)]
        every = rows.loc[rows["speed"].idxmax()]
        first = "no tree of this size was tried"
        if len(fitting):
            best = fitting.loc[fitting["speed"].idxmax()]
            first = (f"with at most {self.nodes.value} nodes <b>{escape(best['drafter'])}</b> is fastest with "
                     f"<b>{best['shape']}</b>, {best['speed']:.2f} times plain decoding ({best['tokens']:.2f} tokens "
                     "per round)")
        return (f"At batch {self.batch.value} {first}. Of all drafters and trees {escape(every['drafter'])} with "
                f"{every['shape']} is fastest, {every['speed']:.2f}"
                + (": leave speculation off." if every["speed"] <= 1 else "."))

    def _draw(self, rows: pd.DataFrame) -> Figure:
        """Left: the typed cost of a check with the measured points; right: the fastest tree of each budget."""
        figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 3.6), layout="constrained")
        typed, measured = curve_of(self.check.value), self._measured()
        nodes = np.arange(int(rows["budget"].max()) + 1)
        left.plot(nodes, typed(nodes), color=theme.VERMILLION)
        left.plot(measured["nodes"], measured["ms"], "o", color=theme.GREY)
        left.axvline(self.nodes.value, color=theme.GREY, linewidth=1, linestyle=theme.DASHED)
        left.set(xlabel="draft nodes per sequence", ylabel="milliseconds of a check", ylim=(0, None))
        for name, candidates in rows.groupby("drafter", sort=False):
            line = candidates.groupby("budget")["speed"].max()
            chosen = name == self.drafter.value
            right.plot(line.index, line, color=theme.VERMILLION if chosen else theme.GREY, label=name,
                       linewidth=2 if chosen else 1, marker="o", markersize=3, zorder=3 if chosen else 2)
        right.axvline(self.nodes.value, color=theme.GREY, linewidth=1, linestyle=theme.DASHED)
        right.axhline(1, color=theme.BLACK, linewidth=1, linestyle=theme.DOTTED)
        right.set(xlabel="budget (draft nodes)", ylabel="speed over plain decoding", xscale="log")
        ticks = 2 ** np.arange(int(nodes[-1]).bit_length())
        right.set_xticks(ticks, list(map(str, ticks)))
        right.minorticks_off()
        charts.name_ends(right)
        return figure


def curve_of(text: str) -> Curve:
    """Milliseconds by nodes of a text such as "0:10.6, 8:14.4", not decreasing. ValueError that says what is wrong."""
    points = {}
    for part in filter(str.strip, text.split(",")):
        nodes, colon, time = part.partition(":")
        try:
            points[int(nodes)] = float(time)
        except ValueError:
            raise ValueError(f"check has {part.strip()!r}: give NODES:MILLISECONDS, as in 8:14.4") from None
    if 0 not in points or len(points) < 2:
        raise ValueError(f"check is {text!r}: give the time of 0 nodes (a plain step) and of at least one other number")
    if min(points) < 0 or min(points.values()) <= 0:
        raise ValueError(f"check is {text!r}: numbers of nodes are 0 or more, and times above 0")
    return Curve.through(list(points), list(points.values()))
