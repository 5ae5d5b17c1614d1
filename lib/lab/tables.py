"""The tables of a run: what their columns mean, and their rows, each with the fingerprint of what made it.

A table is the file `RUN/tables/NAME.csv`, or `.csv.xz` where its schema calls it compressed. Every change replaces the
whole file in one step, so a stopped writer leaves all rows that it added before.
"""

import io
import lzma
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Iterable, Mapping

import pandas as pd
from pandas.api.types import infer_dtype

from lib.lab import atomic_file

FINGERPRINT = "fingerprint"  # the last column of every table: what made the row (see `provenance.fingerprint`)
KINDS = {"text": "str", "integer": "int64", "real": "float64", "flag": "bool"}  # kind of column -> pandas' dtype
TAKES = {"text": ["string"], "integer": ["integer"], "real": ["floating", "integer"], "flag": ["boolean"]}  # inferred
AGAIN = "run its notebook again"
ENDS = {"": "", "_low": "lower end of the 95 % interval of ", "_high": "upper end of the 95 % interval of "}

# -------------------------------------------------------------------------------------------------------------- schemas


@dataclass(frozen=True)
class Column:
    """One column. kind: "text" without line breaks, "integer", "real" (NaN: missing) or "flag"; meaning: with unit."""

    kind: str
    meaning: str


def columns(declared: str, shared: Mapping[str, Column] = {}) -> dict[str, Column]:
    """Columns in the order in which a text declares them.

    A line `NAME KIND MEANING` declares a column; the kind `interval` declares three, NAME, NAME_low and NAME_high. Any
    other line lists names of `shared` columns (of an interval NAME alone). ValueError for a name not among these.
    """
    found: dict[str, Column] = {}
    for line in declared.strip().splitlines():
        name, kind, meaning = (*line.split(maxsplit=2), "", "", "")[:3]
        if kind in KINDS:
            found[name] = Column(kind, meaning)
        elif kind == "interval":
            found |= {name + end: Column("real", f"{words}{name if end else meaning}") for end, words in ENDS.items()}
        else:
            unknown = [word for word in line.split() if word not in shared]
            if unknown:
                raise ValueError(f"column {unknown[0]!r} is not shared: declare it as `{unknown[0]} KIND MEANING`")
            found |= {word + end: shared[word + end] for word in line.split() for end in ENDS if word + end in shared}
    return found


@dataclass(frozen=True)
class Schema:
    """One table. about: what a row is; key: the columns that name a row; columns: in the order of the file."""

    name: str
    about: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    compressed: bool = False

    def __post_init__(self):
        unknown = [name for name in self.key if name not in self.columns]
        if unknown or not self.key or FINGERPRINT in self.columns:
            raise ValueError(f"table {self.name}: the key {self.key} must name columns of the table, and no column may "
                             f"be called {FINGERPRINT!r}; unknown: {unknown}")

    @property
    def file_name(self) -> str:
        """The name of the table's file in a run's folder `tables`."""
        return f"{self.name}.csv.xz" if self.compressed else f"{self.name}.csv"

    @property
    def names(self) -> list[str]:
        """All columns in the order of the file, the fingerprint last."""
        return [*self.columns, FINGERPRINT]


SCHEMAS: dict[str, Schema] = {}  # every declared table by name; studies register theirs


def register(tables: Iterable[Schema]) -> None:
    """Declare tables, so that they can be written and read by name. ValueError for a name that another table has."""
    for table in tables:
        if SCHEMAS.setdefault(table.name, table) != table:
            raise ValueError(f"table {table.name!r} is declared already; give one of the two another name")


def schema_of(name: str) -> Schema:
    """The declared schema of a table; ValueError names the declared tables."""
    if name not in SCHEMAS:
        raise ValueError(f"no table is called {name!r}; declared are {', '.join(sorted(SCHEMAS))}")
    return SCHEMAS[name]


def dictionary(names: Iterable[str] | None = None) -> pd.DataFrame:
    """The data dictionary: one row per column, with its table and meaning."""
    rows = [(schema.name, column, entry.meaning)
            for schema in map(schema_of, names or SCHEMAS) for column, entry in schema.columns.items()]
    return pd.DataFrame(rows, columns=["table", "column", "meaning"])


# ----------------------------------------------------------------------------------------------------------------- rows


class Table:
    """One table of a run, opened for writing. A row counts as done only where its fingerprint is this table's.

    Opening the table removes rows of other fingerprints (of older code, other models or other parameters), and of a
    file that was cut off the last, broken one. Without a run (run_dir == "") the rows are kept as long as the object.
    """

    def __init__(self, run_dir: str | Path, name: str, fingerprint: str):
        self.schema, self.fingerprint = schema_of(name), fingerprint
        if not run_dir:
            self._scratch = TemporaryDirectory()  # deleted together with this object
            run_dir = self._scratch.name
        self.path = path_of(run_dir, name)
        try:
            kept = _parse(self.schema, self.path, _whole_lines(self.schema, self.path))
        except (FileNotFoundError, ValueError):  # no table yet, or one of an older schema, or damaged inside
            kept = _validated(self.schema, [], fingerprint)
        self._rows = kept[kept[FINGERPRINT] == fingerprint]
        _replace(self.schema, self.path, self._rows)
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
        # beside what is there, since to compress all rows again for each new one would take longer than many runs
        atomic_file.replace(self.path, self.path.read_bytes() + _encode(self.schema, added, header=False))
        self._keys, self._rows = keys, frame

    def frame(self) -> pd.DataFrame:
        """All rows, in the order in which they were added."""
        return self._rows.copy()


def path_of(run_dir: str | Path, name: str) -> Path:
    """The file of a run's table."""
    return Path(run_dir) / "tables" / schema_of(name).file_name


def exists(run_dir: str | Path, name: str) -> bool:
    """Whether the run has this table."""
    return path_of(run_dir, name).exists()


def read(run_dir: str | Path, name: str) -> pd.DataFrame:
    """All rows of a run's table.

    FileNotFoundError where the run lacks the table; ValueError where the file is damaged or does not fit the schema.
    """
    try:
        return _decode(schema_of(name), path_of(run_dir, name))
    except FileNotFoundError:
        raise FileNotFoundError(f"no table {name!r} in run {run_dir} ({path_of(run_dir, name)}); run the notebook that "
                                "makes it first") from None


def write(run_dir: str | Path, name: str, rows: Iterable[Mapping] | pd.DataFrame, fingerprint: str) -> None:
    """Write a whole table in the place of the old one. Without a run (run_dir == "") rows are checked and not kept."""
    schema = schema_of(name)
    frame = _validated(schema, rows, fingerprint)
    _keys_of(schema, frame)
    if run_dir:
        _replace(schema, path_of(run_dir, name), frame)


def once(run_dir: str | Path, name: str, fingerprint: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """A table as this run has it with this fingerprint, else as `make` returns it, which is then written.

    For timings on which later rows depend: they stay the same when a stopped run is resumed.
    """
    kept = Table(run_dir, name, fingerprint).frame()
    if kept.empty:
        kept = make()
        write(run_dir, name, kept, fingerprint)
    return kept.drop(columns=FINGERPRINT, errors="ignore")


# ------------------------------------------------------------------------------------------------- checking and coding


def _validated(schema: Schema, rows: Iterable[Mapping] | pd.DataFrame, fingerprint: str) -> pd.DataFrame:
    """The rows as a frame with the schema's columns in their order and kinds, and the fingerprint."""
    rows = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    rows = rows if len(rows) else pd.DataFrame({name: [] for name in schema.columns})
    frame = rows.assign(**{FINGERPRINT: fingerprint}).reset_index(drop=True)
    missing = [name for name in schema.names if name not in frame]
    unknown = [name for name in frame if name not in schema.names]
    if missing or unknown:
        raise ValueError(f"table {schema.name}: columns missing: {missing}, unknown: {unknown}; "
                         f"its schema declares {list(schema.columns)}")
    checked = {name: _checked(schema, name, frame[name]) for name in schema.columns}
    return pd.DataFrame(checked | {FINGERPRINT: frame[FINGERPRINT].astype("str")})


def _checked(schema: Schema, name: str, values: pd.Series) -> pd.Series:
    column = schema.columns[name]
    if column.kind != "text" and values.dtype == KINDS[column.kind]:
        return values
    wrong = [value for value in values.unique().tolist() if infer_dtype([value], skipna=False) not in TAKES[column.kind]
             or (column.kind == "text" and set("\r\n") & set(value))]
    if wrong:
        raise ValueError(f"table {schema.name}, column {name}: {wrong[0]!r} is not of kind {column.kind} "
                         f"(declared as: {column.meaning})")
    return values.astype(KINDS[column.kind])


def _keys_of(schema: Schema, frame: pd.DataFrame, present: Iterable[tuple] = ()) -> set[tuple]:
    """The keys of the rows, and those present. ValueError for a key that two rows would have."""
    keys = set(present)
    for key in frame[list(schema.key)].itertuples(index=False, name=None):
        if key in keys:
            raise ValueError(f"table {schema.name} would have two rows of {dict(zip(schema.key, key))}; leave out rows "
                             "whose key is among keys()")
        keys.add(key)
    return keys


def _replace(schema: Schema, path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.replace(path, _encode(schema, frame))


def _encode(schema: Schema, frame: pd.DataFrame, header: bool = True) -> bytes:
    data = frame.to_csv(index=False, header=header, columns=schema.names, lineterminator="\n").encode()
    return lzma.compress(data) if schema.compressed else data


def _decode(schema: Schema, path: Path) -> pd.DataFrame:
    """The rows of a file. FileNotFoundError without it, ValueError where it is damaged or does not fit the schema."""
    data = path.read_bytes()
    try:
        text = (lzma.decompress(data) if schema.compressed else data).decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from None
    return _parse(schema, path, text)


def _whole_lines(schema: Schema, path: Path) -> str:
    """The text of a file up to its last whole line, wherever it was cut off."""
    data = path.read_bytes()
    if schema.compressed:
        whole = b""
        with suppress(lzma.LZMAError, EOFError):
            while data:  # a stream for each addition
                stream = lzma.LZMADecompressor()
                whole += stream.decompress(data)
                data = stream.unused_data if stream.eof else b""
        data = whole
    return data[: data.rfind(b"\n") + 1].decode(errors="replace")


def _parse(schema: Schema, path: Path, text: str) -> pd.DataFrame:
    found = text.partition("\n")[0].split(",")
    if found != schema.names:
        raise ValueError(f"{path} has the columns {found} where table {schema.name} has {schema.names}: it is "
                         f"damaged or of an older version; {AGAIN}")
    if not text.endswith("\n"):
        raise ValueError(f"{path} is cut off; {AGAIN}")
    kinds = {name: KINDS[column.kind] for name, column in schema.columns.items()} | {FINGERPRINT: "str"}
    missing = {name: [""] for name, column in schema.columns.items() if column.kind == "real"}
    try:
        return pd.read_csv(io.StringIO(text), dtype=kinds, na_values=missing, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"{path} does not fit table {schema.name}: {error}; {AGAIN}") from error
