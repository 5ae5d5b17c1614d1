"""The cost of a round of any tree at any batch and prefix between the calibrated ones, from a table of timed rounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lib.cost.round_cost import Curve, RoundCost, mix, widths
from lib.trees.shapes import parse

PLAIN = "chain:0"  # the shape of plain decoding, which drafts nothing
CELL = ["target", "drafter", "batch", "prefix"]
LEAST_SECONDS = 1e-9  # of a draft: errors are relative, and a clock may give 0


class Costs:
    """The table "costs" as functions: `at` gives the cost of rounds of a pair at a batch and prefix."""

    def __init__(self, rows: pd.DataFrame):
        self.rows = rows
        self.cells = {cell: _fitted(group) for cell, group in rows.groupby(CELL, sort=True)}

    def at(self, target: str, drafter: str, *, batch: int = 1, prefix: float = 128) -> RoundCost:
        """The cost of a round: linear between calibrated batches and prefixes.

        A prefix beyond the calibrated ones takes the nearest. ValueError for a pair or batch that was not calibrated.
        """
        own = {key[2:]: cost for key, cost in self.cells.items() if key[:2] == (target, drafter)}
        if not own:
            pairs = sorted({f"{one}/{other}" for one, other, *_ in self.cells})
            raise ValueError(f"{target}/{drafter} was not calibrated, but {', '.join(pairs)}: calibrate that pair")
        batches = sorted({size for size, _ in own})
        if not batches[0] <= batch <= batches[-1]:
            raise ValueError(f"batch {batch} is outside the calibrated {batches}: calibrate it too")
        by_batch = {size: _between({prefix: cost for (other, prefix), cost in own.items() if other == size}, prefix)
                    for size in batches}
        return _between(by_batch, batch)


def _between(cost_at: dict[float, RoundCost], place: float) -> RoundCost:
    """Linear between the places that have a cost; the nearest one outside them."""
    places = sorted(cost_at)
    above = min(int(np.searchsorted(places, place)), len(places) - 1)
    below = max(0, above - 1)
    low, high = places[below], places[above]
    if low == high or place >= high or place <= low:
        return cost_at[high if place >= high else low]
    return mix(cost_at[low], cost_at[high], (place - low) / (high - low))


def _fitted(rows: pd.DataFrame) -> RoundCost:
    """The cost of rounds at one batch and prefix."""
    check = Curve.through(rows["nodes"], (rows["verify_ms"] + rows["commit_ms"]) / 1000)
    plain = rows[rows["shape"] == PLAIN]
    if not len(plain):
        raise ValueError(f"costs lack shape {PLAIN!r}, plain decoding: calibrate it with the others")
    drafts = rows[rows["nodes"] > 0]
    if not len(drafts):
        raise ValueError(f"costs hold {PLAIN!r} alone for one batch and prefix: calibrate shapes that draft")
    seconds = drafts["draft_ms"].to_numpy() / 1000
    once, level = _draft_model(list(drafts["shape"]), np.maximum(seconds, LEAST_SECONDS))
    cold = float(rows["cold_ms"].median() / 1000) if "cold_ms" in rows else 0.0
    return RoundCost(float((plain["verify_ms"] + plain["commit_ms"] + plain["draft_ms"]).iloc[0] / 1000), once, level,
                     check, cold)


def _draft_model(shapes: list[str], seconds: np.ndarray) -> tuple[float, Curve]:
    """seconds = once + sum over levels of level(width), by least squares of relative errors, without negative terms."""
    widths_of = [widths(parse(shape)) for shape in shapes]
    places = np.unique(np.concatenate(widths_of))
    design = np.array([[1.0, *((own == place).sum() for place in places)] for own in widths_of])
    once, *levels = nnls(design / seconds[:, None], np.ones(len(seconds)))[0]
    return once, Curve.through(places, levels)
