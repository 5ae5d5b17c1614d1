"""The tables of a run: what their columns mean, and their rows, each with the fingerprint of what made it.

`data/columns.csv` declares every table: a row without a column says what a row of the table is, the others its columns
in the order of the file, with kind, unit and meaning, and the place of those that together name a row (`key`). Each
notebook of a run has tables of its own: the table "rounds" of notebook 02 is "02_rounds", in the file
`RUN/tables/02_rounds.csv`; in the committed run, large ones are compressed (`.csv.xz`). Every change replaces the whole
file in one step, so a stopped writer leaves all rows that it added before.
"""

import csv
import io
import lzma
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Iterable, Mapping

import pandas as pd
from pandas.api.types import infer_dtype

from lib.lab import atomic_file, provenance

DECLARED = provenance.HOME / "data" / "columns.csv"
FINGERPRINT = "fingerprint"  # the last column of every table: what made the row (see `provenance.fingerprint`)
DTYPES = {"text": "str", "integer": "int64", "real": "float64", "flag": "bool"}  # kind of column -> pandas' dtype
TAKES = {"text": ["string"], "integer": ["integer"], "real": ["floating", "integer"], "flag": ["boolean"]}  # inferred
AGAIN = "run its notebook again"


@dataclass(frozen=True)
class Column:
    """One column. kind: "text" without line breaks, "integer", "real" (NaN: missing) or "flag"; unit: "" for none."""

    kind: str
    meaning: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Schema:
    """One table. key: the columns that name a row; columns: in the order of the file; about: what a row is."""

    name: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    about: str = ""

    @property
    def header(self) -> list[str]:
        """The names of all columns, the fingerprint's last."""
        return [*self.columns, FINGERPRINT]

    @property
    def dtypes(self) -> dict[str, str]:
        """By column the dtype that pandas gives it."""
        return {name: DTYPES[column.kind] for name, column in self.columns.items()} | {FINGERPRINT: "str"}


@cache
def schemas() -> dict[str, Schema]:
    """Every table that `data/columns.csv` declares, by name."""
    rows: dict[str, list[dict[str, str]]] = {}
    with open(DECLARED, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["table"], []).append(row)
    declared = {}
    for name, (about, *columns) in rows.items():
        key = sorted((row for row in columns if row["key"]), key=lambda row: int(row["key"]))
        declared[name] = Schema(name, tuple(row["column"] for row in key),
                                {row["column"]: Column(row["kind"], row["meaning"], row["unit"]) for row in columns},
                                about["meaning"])
    return declared


def schema(name: str) -> Schema:
    """The schema of a notebook's table: that of "rounds" for "02_rounds"."""
    return schemas()[re.sub(r"^\d\d_", "", name)]


class Table:
    """One table of a run, opened for writing. A row counts as done only where its fingerprint is this table's.

    Opening the table removes rows of other fingerprints (of older code, other models or other parameters), and of a
    file that was cut off the last, broken one.
    """

    def __init__(self, run_dir: str | Path, name: str, fingerprint: str):
        self.schema, self.fingerprint = schema(name), fingerprint
        self.path = Path(run_dir) / "tables" / f"{name}.csv"
        try:
            rows = _parse(self.schema, path_of(run_dir, name), whole_lines=True)
        except (FileNotFoundError, ValueError):  # no table yet, or one of an older schema, or damaged inside
            rows = _validated(self.schema, [], fingerprint)
        self._rows = rows[rows[FINGERPRINT] == fingerprint]
        _replace(self.path, self._rows)
        self._keys = _keys_of(self.schema, self._rows)

    def keys(self) -> set[tuple]:
        """The keys of the rows that are done, in the order of the schema's `key`."""
        return set(self._keys)

    def append(self, **row) -> None:
        """Add one row (see `extend`)."""
        self.extend([row])

    def extend(self, rows: Iterable[Mapping] | pd.DataFrame) -> None:
        """Add rows; all of them are on disk when this returns, or none.

        ValueError where a column is missing, unknown or of another kind, and for a key that the table already has.
        """
        added = _validated(self.schema, rows, self.fingerprint)
        keys, frame = _keys_of(self.schema, added, self._keys), pd.concat([self._rows, added], ignore_index=True)
        atomic_file.replace(self.path, self.path.read_bytes() + _encoded(added, header=False))
        self._keys, self._rows = keys, frame

    def frame(self) -> pd.DataFrame:
        """All rows, in the order in which they were added."""
        return self._rows.copy()


def path_of(run_dir: str | Path, name: str) -> Path:
    """The file of a run's table: NAME.csv, or NAME.csv.xz where there is that alone."""
    plain = Path(run_dir) / "tables" / f"{name}.csv"
    packed = plain.with_suffix(".csv.xz")
    return packed if packed.exists() and not plain.exists() else plain


def exists(run_dir: str | Path, name: str) -> bool:
    """Whether the run has this table."""
    return path_of(run_dir, name).exists()


def read(run_dir: str | Path, name: str) -> pd.DataFrame:
    """All rows of a run's table; columns that are no longer declared are left out.

    FileNotFoundError where the run lacks the table; ValueError where the file is damaged or does not fit the schema.
    """
    path = path_of(run_dir, name)
    try:
        return _parse(schema(name), path)
    except FileNotFoundError:
        raise FileNotFoundError(f"no table {name!r} in run {run_dir} ({path}); run the notebook that makes it "
                                "first") from None


def write(run_dir: str | Path, name: str, rows: Iterable[Mapping] | pd.DataFrame, fingerprint: str) -> None:
    """Write a whole table in the place of the old one."""
    frame = _validated(schema(name), rows, fingerprint)
    _keys_of(schema(name), frame)
    _replace(Path(run_dir) / "tables" / f"{name}.csv", frame)


def _validated(schema: Schema, rows: Iterable[Mapping] | pd.DataFrame, fingerprint: str) -> pd.DataFrame:
    """The rows as a frame with the schema's columns in their order and kinds, and the fingerprint."""
    rows = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    rows = rows if len(rows) else pd.DataFrame({name: [] for name in schema.columns})
    frame = rows.assign(**{FINGERPRINT: fingerprint}).reset_index(drop=True)
    missing, unknown = ([name for name in names if name not in others]
                        for names, others in ((schema.header, frame), (frame, schema.header)))
    if missing or unknown:
        raise ValueError(f"table {schema.name}: columns missing: {missing}, unknown: {unknown}; {DECLARED.name} "
                         f"declares {list(schema.columns)}")
    for name, column in schema.columns.items():
        if column.kind == "text" or frame[name].dtype != DTYPES[column.kind]:
            wrong = [value for value in frame[name].unique().tolist()
                     if infer_dtype([value], skipna=False) not in TAKES[column.kind]
                     or (column.kind == "text" and set("\r\n") & set(value))]
            if wrong:
                raise ValueError(f"table {schema.name}, column {name}: {wrong[0]!r} is not of kind {column.kind} "
                                 f"(declared as: {column.meaning})")
    return frame.astype(schema.dtypes)[schema.header]


def _keys_of(schema: Schema, frame: pd.DataFrame, present: Iterable[tuple] = ()) -> set[tuple]:
    """The keys of the rows, and those present. ValueError for a key that two rows would have."""
    keys = set(present)
    for key in frame[list(schema.key)].itertuples(index=False, name=None):
        if key in keys:
            raise ValueError(f"table {schema.name} would have two rows of {dict(zip(schema.key, key))}; leave out rows "
                             "whose key is among keys()")
        keys.add(key)
    return keys


def _replace(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".csv.xz").unlink(missing_ok=True)
    atomic_file.replace(path, _encoded(frame))


def _encoded(frame: pd.DataFrame, header: bool = True) -> bytes:
    return frame.to_csv(index=False, header=header, lineterminator="\n").encode()


def _parse(schema: Schema, path: Path, whole_lines: bool = False) -> pd.DataFrame:
    """The rows of a file. whole_lines: as far as it has whole ones, wherever it was cut off.

    FileNotFoundError without the file, ValueError where it is damaged or lacks a column of the schema.
    """
    data = path.read_bytes()
    try:
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        text = data[: data.rfind(b"\n") + 1].decode() if whole_lines else data.decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from None
    columns = text.partition("\n")[0].split(",")
    if lacking := [name for name in schema.header if name not in columns]:
        raise ValueError(f"{path} has the columns {columns} and lacks {lacking}: it is damaged or of an older version; "
                         f"{AGAIN}")
    if not text.endswith("\n"):
        raise ValueError(f"{path} is cut off; {AGAIN}")
    missing = {name: [""] for name, column in schema.columns.items() if column.kind == "real"}
    try:
        rows = pd.read_csv(io.StringIO(text), dtype=schema.dtypes, na_values=missing, keep_default_na=False,
                           usecols=schema.header)
    except ValueError as error:
        raise ValueError(f"{path} does not fit table {schema.name}: {error}; {AGAIN}") from error
    return rows[schema.header]
