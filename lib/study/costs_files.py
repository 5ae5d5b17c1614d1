"""Cost curves of machines as files: those of data/costs, and a user's own, made by `lib/engines/measure_served.py`.

A file is a CSV table with the columns of the table "costs", and machine, source and note. `forced` rows hold a step
that checks that many draft tokens per prompt, `plain` rows a step without speculation; rows of other methods hold what
drafting a tree adds to a step.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from lib.engines.methods import FORCED, PLAIN
from lib.study.costs import Costs
from lib.study.settings import COSTS, costs_file

NEEDED = ("backend", "batch", "method", "nodes", "ms")
NUMBERS = ["batch", "nodes", "ms", "low", "high", "n"]
COLUMNS = ["machine", "source", "note", "backend", "method", "shape", *NUMBERS]


def names() -> list[str]:
    """The names of the files of data/costs."""
    return sorted(path.stem for path in COSTS.glob("*.csv"))


def read(name: str | Path) -> pd.DataFrame:
    """The rows of a file of costs, of one or several backends. ValueError names line, value and remedy."""
    path = costs_file(name)
    try:
        texts = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"{path} is no CSV table ({' '.join(str(error).split())}); give one with the columns "
                         f"{', '.join(NEEDED)}") from None
    if missing := [column for column in NEEDED if column not in texts]:
        raise ValueError(f"{path} lacks the column {missing[0]}; it has {', '.join(texts.columns)}")
    texts = texts.reindex(columns=COLUMNS, fill_value="")
    rows = texts.assign(**texts[NUMBERS].apply(pd.to_numeric, errors="coerce"))
    is_step, whole = rows["method"].isin([PLAIN, FORCED]), rows[["batch", "nodes"]].mod(1).eq(0)
    default = np.where(is_step, "nodes:", "chain:") + rows["nodes"].map("{:g}".format)
    rows["shape"] = rows["shape"].where(rows["shape"].ne(""), default)
    for column, fits, remedy in (
            ("batch", whole["batch"] & rows["batch"].ge(1), "a whole number from 1 on"),
            ("nodes", whole["nodes"] & rows["nodes"].ge(0), "a whole number from 0 on"),
            ("nodes", rows["nodes"].eq(0) | rows["method"].ne(PLAIN), "0, of a plain step"),
            ("ms", np.isfinite(rows["ms"]) & (rows["ms"].gt(0) | ~is_step), "milliseconds above 0")):
        if not fits.all():
            index = int(np.argmin(fits))
            raise ValueError(f"{path}, line {index + 2}: {column} is {texts[column].iloc[index]!r}; give {remedy}")
    shapes = rows[~is_step].groupby(["backend", "batch", "method"])["shape"].nunique()
    if (shapes < 2).any():
        backend, batch, method = shapes.idxmin()
        raise ValueError(f"{path} has one shape of the drafting of {method} ({backend}, batch {batch:.0f}); give two, "
                         "such as chain:1 and chain:4, so that it can be split into levels")
    return rows.astype({"batch": int, "nodes": int})


def of_backends(rows: pd.DataFrame) -> dict[str, Costs]:
    """By backend the costs of rows of `read`; a backend without a plain step or without checks has none, since no speed
    can be predicted for it. ValueError where that leaves no backend, and for shapes that name no tree.
    """
    kinds = {backend: set(part["method"]) for backend, part in rows.groupby("backend", sort=False)}
    complete = [backend for backend, methods in kinds.items() if {PLAIN, FORCED} <= methods]
    if not complete:
        raise ValueError(f"costs of {', '.join(kinds)} lack a plain step or checks of forced drafts, so that no speed "
                         f"can be predicted; add rows of the methods {PLAIN} and {FORCED}")
    return {backend: Costs.of(rows[rows["backend"] == backend]) for backend in complete}


def with_plain(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one backend, with a plain step of the time of the smallest check where none was published."""
    if PLAIN in set(rows["method"]):
        return rows
    least = rows[(rows["method"] == FORCED) & (rows["ms"] == rows["ms"].min())]
    return pd.concat([rows, least.assign(method=PLAIN, nodes=0)])
