"""Cost curves of machines as files: those of data/costs, and a user's own, as `lib/engines/measure_served.py` writes
it.

A file is a CSV table with the columns of the table "costs", and machine, source and note. `forced` rows hold a step
that checks that many draft tokens per prompt, `plain` rows a step without speculation; rows of other methods hold what
drafting a tree adds to a step. A curve has its steps where the points are.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from lib.engines.methods import FORCED, PLAIN
from lib.study.costs import Costs
from lib.study.settings import COSTS, costs_file
from lib.trees import named

NEEDED = ("backend", "batch", "method", "nodes", "ms")
COLUMNS = ("machine", "source", "note", "backend", "batch", "method", "shape", "nodes", "ms", "low", "high", "n")
MOST = 10**6  # prompts of a batch, or draft tokens
NUMBERS = ("batch", "nodes", "ms", "low", "high", "n")


def names() -> list[str]:
    """The names of the files of data/costs."""
    return sorted(path.stem for path in COSTS.glob("*.csv"))


def read(name: str | Path) -> pd.DataFrame:
    """The rows of a file of costs, of one or several backends. ValueError names line, value and remedy."""
    path = costs_file(name)
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"{path} is no CSV table ({' '.join(str(error).split())}); give one with the columns "
                         f"{', '.join(NEEDED)}") from None
    if missing := [column for column in NEEDED if column not in rows]:
        raise ValueError(f"{path} lacks the column {missing[0]}; it has {', '.join(rows.columns)}")
    if rows.empty:
        raise ValueError(f"{path} has no row; give plain steps and checks of forced drafts")
    rows = rows.reindex(columns=COLUMNS, fill_value="")
    texts, numbers = rows, rows.assign(**{column: pd.to_numeric(rows[column], errors="coerce") for column in NUMBERS})
    checks = numbers["method"].isin([PLAIN, FORCED])
    for column, least in (("batch", 1), ("nodes", 0)):
        _check(path, texts, column, numbers[column].between(least, MOST) & numbers[column].mod(1).eq(0),
               f"a whole number from {least} on")
    _check(path, texts, "nodes", numbers["nodes"].eq(0) | numbers["method"].ne(PLAIN), "0, of a plain step")
    _check(path, texts, "ms", np.isfinite(numbers["ms"]) & (numbers["ms"].gt(0) | ~checks), "milliseconds above 0")
    default = np.where(checks, "nodes:", "chain:") + numbers["nodes"].astype(int).astype(str)
    numbers["shape"] = numbers["shape"].where(numbers["shape"].ne(""), default)
    _check(path, texts.assign(shape=numbers["shape"]), "shape", checks | numbers["shape"].map(_is_tree),
           "the name of a draft tree, such as chain:4")
    shapes = numbers[~checks].groupby(["backend", "batch", "method"])["shape"].nunique()
    if (shapes < 2).any():
        backend, batch, method = shapes.idxmin()
        raise ValueError(f"{path} has one shape of the drafting of {method} ({backend}, batch {batch:.0f}); give two, "
                         "such as chain:1 and chain:4, so that it can be split into levels")
    return numbers.astype({"batch": int, "nodes": int})


def _check(path: Path, texts: pd.DataFrame, column: str, right: pd.Series, remedy: str) -> None:
    """ValueError for the first row that is not right."""
    if not right.all():
        index = int(np.argmin(right))
        raise ValueError(f"{path}, line {index + 2}: {column} is {texts[column].iloc[index]!r}; give {remedy}")


def _is_tree(name: str) -> bool:
    """Whether a text names a tree or a growth rule."""
    try:
        return bool(named(name))
    except ValueError:
        return False


def of_backends(rows: pd.DataFrame) -> dict[str, Costs]:
    """By backend the costs of rows of `read`; a backend without a plain step or without checks has none, since no speed
    can be predicted for it. ValueError where that leaves no backend.
    """
    kinds = {backend: set(part["method"]) for backend, part in rows.groupby("backend", sort=False)}
    complete = [backend for backend, methods in kinds.items() if {PLAIN, FORCED} <= methods]
    if not complete:
        raise ValueError(f"costs of {', '.join(kinds)} lack a plain step or checks of forced drafts, so that no speed "
                         f"can be predicted; add rows of the methods {PLAIN} and {FORCED}")
    return {backend: Costs.of(rows[rows["backend"] == backend]) for backend in complete}
