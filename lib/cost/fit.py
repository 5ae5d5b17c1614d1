"""From a table of calibrated rounds to the cost of any tree, at any batch and prefix between the calibrated ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lib.cost.calibration import PLAIN
from lib.cost.curves import Curve
from lib.cost.rounds import RoundCost, mix, widths
from lib.trees.shapes import parse

CELL = ["target", "drafter", "batch", "prefix"]
LEAST_SECONDS = 1e-9  # of a draft; errors are relative, and a clock may say 0
TIMES = ["draft_ms", "verify_ms", "commit_ms"]
NEEDED = [*CELL, "shape", "nodes", *TIMES]


class Costs:
    """The table "costs" as functions: `at` gives the cost of rounds of a pair at a batch and prefix.

    ValueError where columns are missing, or a cell holds what is no size, no shape or no time.
    """

    def __init__(self, rows: pd.DataFrame):
        self.rows = _checked(rows)
        self.cells = {cell: _fitted(group) for cell, group in rows.groupby(CELL, sort=True)}

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Costs from a file, such as another machine's table "costs" (CSV). ValueError where it holds no costs."""
        try:
            return cls(pd.read_csv(path))
        except (UnicodeDecodeError, pd.errors.EmptyDataError, pd.errors.ParserError) as reason:
            said = str(reason).strip()
            raise ValueError(f"{path} is no table ({said}): give the CSV file of a table 'costs'") from None

    def at(self, target: str, drafter: str, *, batch: int = 1, prefix: float = 128) -> RoundCost:
        """The cost of a round: linear between calibrated batches and prefixes.

        A prefix beyond the calibrated ones takes the nearest. ValueError for a pair or batch that was not calibrated.
        """
        own = {key[2:]: cost for key, cost in self.cells.items() if key[:2] == (target, drafter)}
        if not own:
            known = sorted({f"{one}/{other}" for one, other, *_ in self.cells})
            raise ValueError(f"{target}/{drafter} was not calibrated, but {', '.join(known)}: calibrate that pair")
        batches = sorted({size for size, _ in own})
        if not batches[0] <= batch <= batches[-1]:
            raise ValueError(f"batch {batch} is outside the calibrated {batches}: calibrate it too")
        by_batch = {size: _between({prefix: cost for (other, prefix), cost in own.items() if other == size}, prefix)
                    for size in batches}
        return _between(by_batch, batch)


def _checked(rows: pd.DataFrame) -> pd.DataFrame:
    """The table itself, if it is one of costs."""
    missing = [name for name in NEEDED if name not in rows]
    if missing or not len(rows):
        raise ValueError(f"costs lack {missing or 'rows'}: give what cost.calibrate makes, with {', '.join(NEEDED)}")
    for name in ("batch", "prefix", "nodes", *TIMES):
        numbers = pd.to_numeric(rows[name], errors="coerce")
        wrong = ~(np.isfinite(numbers) & (numbers >= 0))
        if wrong.any():
            value, shape = rows.loc[wrong, [name, "shape"]].iloc[0]
            raise ValueError(f"costs have {name} {value} in shape {shape}: give numbers of at least 0; calibrate again "
                             "where a time is missing")
    for name in rows["shape"].unique():
        parse(name)  # refuses what is none
    return rows


def _between(known: dict[float, RoundCost], wanted: float) -> RoundCost:
    places = sorted(known)
    above = min(int(np.searchsorted(places, wanted)), len(places) - 1)
    below = max(0, above - 1)
    low, high = places[below], places[above]
    if low == high or wanted >= high or wanted <= low:
        return known[high if wanted >= high else low]
    return mix(known[low], known[high], (wanted - low) / (high - low))


def _fitted(rows: pd.DataFrame) -> RoundCost:
    check = Curve.through(rows["nodes"], (rows["verify_ms"] + rows["commit_ms"]) / 1000)
    plain = rows[rows["shape"] == PLAIN]
    if not len(plain):
        raise ValueError(f"costs lack shape {PLAIN!r}, plain decoding: calibrate it with the others")
    drafts = rows[rows["nodes"] > 0]
    if not len(drafts):
        raise ValueError(f"costs hold {PLAIN!r} alone for one batch and prefix: calibrate shapes that draft")
    seconds = drafts["draft_ms"].to_numpy() / 1000
    once, level = _draft_model(list(drafts["shape"]), np.maximum(seconds, LEAST_SECONDS))
    return RoundCost(float((plain["verify_ms"] + plain["commit_ms"] + plain["draft_ms"]).iloc[0] / 1000), once, level,
                     check)


def _draft_model(shapes: list[str], seconds: np.ndarray) -> tuple[float, Curve]:
    """seconds = once + sum over levels of level(width), with the smallest squared relative errors."""
    levels = [widths(parse(shape)) for shape in shapes]
    places = np.unique(np.concatenate(levels))
    design = np.array([[1.0, *((own == place).sum() for place in places)] for own in levels])
    found = _least_squares(design / seconds[:, None], np.ones(len(seconds)))
    return found[0], Curve.through(places, found[1:])


def _least_squares(design: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares without negative entries: while there are some, the lowest is fixed at zero."""
    free = list(range(design.shape[1]))
    while free:
        found = np.linalg.lstsq(design[:, free], wanted, rcond=None)[0]
        if (found >= 0).all():
            break
        free.pop(int(found.argmin()))
    entries = np.zeros(design.shape[1])
    if free:
        entries[free] = found
    return entries
