"""The tables of a run: rows appended one by one so that nothing finished is lost, each with what made it.

A table is `RUN/tables/NAME.csv`, or `.csv.xz` where its schema (see `schema`) calls it large. A writer that is killed
midway leaves a table that reads as if it had not begun (see `whole_appends`).
"""

import io
import lzma
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Iterable, Mapping

import numpy as np
import pandas as pd

from lib.lab import atomic_file
from lib.lab.schema import FINGERPRINT, SCHEMAS, Schema

KINDS = {"text": "str", "integer": "int64", "real": "float64", "flag": "bool"}  # as pandas names them


class Table:
    """One table of a run, opened for writing; a row counts as done only where its fingerprint is this one.

    Rows of other fingerprints (older code, other models or parameters) leave the file when it is opened. Without a run
    (run_dir == "") rows are kept no longer than the table itself.
    """

    def __init__(self, run_dir: str | Path, name: str, fingerprint: str):
        self.schema, self.fingerprint = schema_of(name), fingerprint
        if not run_dir:
            self._scratch = TemporaryDirectory()  # goes with the table
            run_dir = self._scratch.name
        self.path = path_of(run_dir, name)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = self._own_rows()
        atomic_file.replace(self.path, _encode(self.schema, kept, header=True))
        self._keys = set(_key_tuples(self.schema, kept))

    def keys(self) -> set[tuple]:
        """The keys, in the order of the schema's `key`, of the rows that are there."""
        return set(self._keys)

    def append(self, **row) -> None:
        """Add one row, on disk when this returns. ValueError where a column is missing, unknown or of another kind."""
        self.extend([row])

    def extend(self, rows: Iterable[Mapping] | pd.DataFrame) -> None:
        """Add several rows at once: after a crash all of them are there, or none. ValueError as `append`, or for a key
        that the table already has.
        """
        frame = _validated(self.schema, rows, self.fingerprint)
        keys = _key_tuples(self.schema, frame)
        _refuse_twins(self.schema, keys, self._keys)
        atomic_file.append(self.path, _encode(self.schema, frame, header=False))
        self._keys.update(keys)

    def frame(self) -> pd.DataFrame:
        """All rows, in the order of appending."""
        return _decode(self.schema, self.path)

    def close(self) -> pd.DataFrame:
        """Rewrite the file compactly (one compressed block in place of one an append) and return its rows."""
        frame = self.frame()
        atomic_file.replace(self.path, _encode(self.schema, frame, header=True))
        return frame

    def _own_rows(self) -> pd.DataFrame:
        none = _validated(self.schema, [], self.fingerprint)
        if not self.path.exists():
            return none
        atomic_file.roll_back(self.path)
        try:
            frame = _decode(self.schema, self.path)
        except ValueError:  # of an older schema: no row of it can have this fingerprint
            return none
        return frame[frame[FINGERPRINT] == self.fingerprint]


def schema_of(name: str) -> Schema:
    """The declared schema of a table; ValueError names the tables there are."""
    if name not in SCHEMAS:
        raise ValueError(f"no table is called {name!r}; declared are {', '.join(sorted(SCHEMAS))}")
    return SCHEMAS[name]


def path_of(run_dir: str | Path, name: str) -> Path:
    """Where a run keeps a table."""
    return Path(run_dir) / "tables" / schema_of(name).file_name


def exists(run_dir: str | Path, name: str) -> bool:
    """Whether the run has this table."""
    return path_of(run_dir, name).exists()


def read(run_dir: str | Path, name: str) -> pd.DataFrame:
    """All rows of a run's table, checked against its schema.

    FileNotFoundError where the run has no such table; ValueError where the file's columns or values do not fit.
    """
    path = path_of(run_dir, name)
    if not path.exists():
        raise FileNotFoundError(f"no table {name!r} in run {run_dir} ({path}); run the notebook that makes it first")
    return _decode(schema_of(name), path)


def write(run_dir: str | Path, name: str, rows: Iterable[Mapping] | pd.DataFrame, fingerprint: str) -> None:
    """Write a whole table at once, in the place of what was there; the file is always the old one or the new one.

    Without a run (run_dir == "") the rows are checked and not kept.
    """
    schema, path = schema_of(name), path_of(run_dir, name)
    frame = _validated(schema, rows, fingerprint)
    _refuse_twins(schema, _key_tuples(schema, frame))
    if not run_dir:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        atomic_file.roll_back(path)
    atomic_file.replace(path, _encode(schema, frame, header=True))


def pack(path: Path) -> None:
    """Packs a compressed table's file as small as it gets, a third smaller, at a megabyte of text a second."""
    tight = [{"id": lzma.FILTER_LZMA2, "preset": 6, "nice_len": 273}]
    atomic_file.replace(path, lzma.compress(atomic_file.committed(path), filters=tight))


def once(run_dir: str | Path, name: str, fingerprint: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """A whole table as it was made in this run with this fingerprint, else made and written now: what is timed once,
    and decides what rows mean, does not change when a stopped run goes on.
    """
    kept = Table(run_dir, name, fingerprint).frame()
    if kept.empty:
        kept = make()
        write(run_dir, name, kept, fingerprint)
    return kept.drop(columns=FINGERPRINT, errors="ignore")


def dictionary(names: Iterable[str] | None = None) -> pd.DataFrame:
    """The data dictionary: one row a column, with its table, kind, meaning, and whether it is part of the key."""
    rows = [(schema.name, column, entry.kind, entry.meaning, column in schema.key)
            for schema in map(schema_of, names or SCHEMAS) for column, entry in schema.columns.items()]
    return pd.DataFrame(rows, columns=["table", "column", "kind", "meaning", "key"])


# ------------------------------------------------------------------------------------------------- checking and coding


def _validated(schema: Schema, rows: Iterable[Mapping] | pd.DataFrame, fingerprint: str) -> pd.DataFrame:
    """The rows as a frame with the schema's columns, in its order and kinds, and the fingerprint."""
    if not isinstance(rows, pd.DataFrame):
        rows = list(rows)
        rows = pd.DataFrame(rows, columns=None if rows else list(schema.columns))
    frame = rows.assign(**{FINGERPRINT: fingerprint}).reset_index(drop=True)
    missing = [name for name in schema.names if name not in frame]
    unknown = [name for name in frame if name not in schema.names]
    if missing or unknown:
        raise ValueError(f"table {schema.name}: columns missing: {missing}, unknown: {unknown}; "
                         f"its schema declares {list(schema.columns)}")
    checked = {name: _checked(schema, name, frame[name]) for name in schema.columns}
    return pd.DataFrame(checked | {FINGERPRINT: frame[FINGERPRINT].astype("str")})


def _key_tuples(schema: Schema, frame: pd.DataFrame) -> list[tuple]:
    return list(frame[list(schema.key)].itertuples(index=False, name=None))


def _refuse_twins(schema: Schema, keys: list[tuple], there: Iterable[tuple] = ()) -> None:
    seen = set(there)  # a copy
    for key in keys:
        if key in seen:
            raise ValueError(f"table {schema.name} would have two rows of {dict(zip(schema.key, key))}; "
                             "ask keys() what is done before making rows")
        seen.add(key)


def _checked(schema: Schema, name: str, values: pd.Series) -> pd.Series:
    kind = schema.columns[name].kind
    if kind != "text" and values.dtype == KINDS[kind]:
        return values
    wrong = [getattr(value, "item", lambda: value)() for value in values.unique() if not _fits(kind, value)]
    if wrong:
        raise ValueError(f"table {schema.name}, column {name}: {wrong[0]!r} is not of kind {kind} "
                         f"(declared as: {schema.columns[name].meaning})")
    return values.astype(KINDS[kind])


def _fits(kind: str, value: object) -> bool:
    if kind == "text":
        return isinstance(value, str) and not set("\r\n") & set(value)
    if isinstance(value, (bool, np.bool_)):
        return kind == "flag"
    return isinstance(value, {"integer": Integral, "real": Real, "flag": bool}[kind])


def _encode(schema: Schema, frame: pd.DataFrame, header: bool) -> bytes:
    data = frame.to_csv(index=False, header=header, columns=schema.names, lineterminator="\n").encode()
    return lzma.compress(data) if schema.compressed else data


def _decode(schema: Schema, path: Path) -> pd.DataFrame:
    data = atomic_file.committed(path)
    found = data.split(b"\n", 1)[0].decode().split(",") if data else []
    if found != schema.names:
        raise ValueError(f"{path} has the columns {found} where table {schema.name} has {schema.names}; "
                         "it is of an older version, run its notebook again")
    kinds = {name: KINDS[column.kind] for name, column in schema.columns.items()} | {FINGERPRINT: "str"}
    missing = {name: [""] for name, column in schema.columns.items() if column.kind == "real"}
    try:
        return pd.read_csv(io.BytesIO(data), dtype=kinds, na_values=missing, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"{path} does not fit table {schema.name}: {error}; run its notebook again") from error
