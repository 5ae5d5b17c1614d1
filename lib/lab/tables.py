"""The tables of a run: what their columns mean, and their rows, each with the fingerprint of what made it.

`data/columns.csv` declares every table: a row without a column says what a row of the table is, the others its columns
in the order of the file, with kind, unit and meaning, and the position of those that together name a row (`key`). The
table "rounds" of notebook 02 is "02_rounds", in the file `RUN/tables/02_rounds.csv`, or compressed in `.csv.xz`. A
writer that is stopped leaves all rows that it added, and at most a cut line, which is not read.
"""

import io
import lzma
import os
import re
from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import pandas as pd

from lib.lab import atomic_file, provenance

DECLARED = provenance.HOME / "data" / "columns.csv"
FINGERPRINT = "fingerprint"  # the last column of every table: what made the row (see `provenance.fingerprint`)
# By kind of column: pandas' dtype, and the types of values that it takes.
KINDS = {"text": ("str", str), "integer": ("int64", Integral), "real": ("float64", Real),
         "flag": ("bool", (bool, np.bool_))}


@dataclass(frozen=True)
class Schema:
    """One table. key: the columns that name a row; kinds: of the columns in their order, see `KINDS`. A text has no
    line breaks, and a NaN is a missing value.
    """

    name: str
    key: tuple[str, ...]
    kinds: Mapping[str, str]

    @property
    def dtypes(self) -> dict[str, str]:
        """pandas' dtype of each column of the file, of which the fingerprint is the last."""
        return {name: KINDS[kind][0] for name, kind in self.kinds.items()} | {FINGERPRINT: "str"}

    def frame(self, rows: Sequence[Sequence] = ()) -> pd.DataFrame:
        """Rows of the file's columns as a frame."""
        return pd.DataFrame(rows, columns=list(self.dtypes)).astype(self.dtypes)

    def check(self, row: Mapping) -> None:
        """ValueError where a column is missing, unknown or of another kind."""
        if differing := row.keys() ^ self.kinds.keys():
            raise ValueError(f"table {self.name}: columns missing or unknown: {sorted(differing)}; {DECLARED.name} "
                             f"declares {list(self.kinds)}")
        for name, kind in self.kinds.items():
            if not isinstance(row[name], KINDS[kind][1]) or kind == "text" and set("\r\n") & set(row[name]):
                raise ValueError(f"table {self.name}, column {name}: {row[name]!r} is not of kind {kind}")


@cache
def schemas() -> dict[str, Schema]:
    """Every table that `data/columns.csv` declares, by name."""
    declared, by_name = pd.read_csv(DECLARED, keep_default_na=False, dtype=str), {}
    for name, rows in declared[declared["column"] != ""].groupby("table", sort=False):
        key = rows[rows["key"] != ""].sort_values("key", key=pd.to_numeric)["column"]
        by_name[name] = Schema(name, tuple(key), dict(zip(rows["column"], rows["kind"])))
    return by_name


def schema(name: str) -> Schema:
    """The schema of a notebook's table: that of "rounds" for "02_rounds"."""
    return schemas()[re.sub(r"^\d\d_", "", name)]


class Table:
    """One table of a run, opened for writing, which removes rows of other fingerprints: of other code or parameters."""

    def __init__(self, run_dir: str | Path, name: str, fingerprint: str):
        self.schema, self.fingerprint, self.path = schema(name), fingerprint, path_of(run_dir, name)
        try:
            rows = read(run_dir, name)
        except (FileNotFoundError, ValueError):  # no table yet, or one of an older schema, or damaged inside
            rows = self.schema.frame()
        rows = rows[rows[FINGERPRINT] == fingerprint]
        keys = rows[list(self.schema.key)].itertuples(index=False, name=None)
        self._rows = dict(zip(keys, rows.itertuples(index=False, name=None)))
        data = rows.to_csv(index=False).encode()
        if not self.path.exists() or self.path.read_bytes() != data:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self.path, data)
            self.path.with_suffix(".csv.xz").unlink(missing_ok=True)

    def keys(self) -> KeysView[tuple]:
        """The keys of the rows that are done, in the order of the schema's `key`."""
        return self._rows.keys()

    def extend(self, rows: Iterable[Mapping] | pd.DataFrame) -> None:
        """Add rows; all of them are on disk when this returns. ValueError, and no row added, where one does not fit the
        schema or has a key that the table has already.
        """
        added = {}
        for row in rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows:
            self.schema.check(row)
            key = tuple(row[name] for name in self.schema.key)
            if key in added or key in self._rows:
                raise ValueError(f"table {self.schema.name} would have two rows of {dict(zip(self.schema.key, key))}; "
                                 "leave out rows whose key is among keys()")
            added[key] = *(row[name] for name in self.schema.kinds), self.fingerprint
        with open(self.path, "ab") as file:
            file.write(self.schema.frame(list(added.values())).to_csv(index=False, header=False).encode())
            file.flush()
            os.fsync(file.fileno())
        self._rows |= added

    def add(self, rows: Iterable[Mapping] | pd.DataFrame) -> None:
        """Add those rows whose keys are missing (see `extend`)."""
        rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
        self.extend([row for row in rows if tuple(row[name] for name in self.schema.key) not in self.keys()])

    def frame(self) -> pd.DataFrame:
        """All rows, in the order in which they were added."""
        return self.schema.frame(list(self._rows.values()))


def path_of(run_dir: str | Path, name: str) -> Path:
    """The file of a run's table."""
    return Path(run_dir) / "tables" / f"{name}.csv"


def read(run_dir: str | Path, name: str) -> pd.DataFrame:
    """All whole rows of a run's table; columns that are no longer declared are left out.

    FileNotFoundError where the run lacks the table; ValueError where the file is damaged or does not fit the schema.
    """
    path, dtypes = path_of(run_dir, name), schema(name).dtypes
    path = path if path.exists() else path.with_suffix(".csv.xz")
    if not path.exists():
        raise FileNotFoundError(f"no table {name!r} in run {run_dir} ({path}); run the notebook that makes it first")
    missing = {column: [""] for column, dtype in dtypes.items() if dtype == "float64"}
    try:
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        text = io.StringIO(data[: data.rfind(b"\n") + 1].decode())
        rows = pd.read_csv(text, dtype=dtypes, na_values=missing, keep_default_na=False, usecols=list(dtypes))
    except (lzma.LZMAError, ValueError) as error:
        raise ValueError(f"{path} is damaged or of an older version ({error}); run its notebook again") from None
    return rows[list(dtypes)]

