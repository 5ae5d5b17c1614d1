"""What a table is: columns with type, meaning and unit, and the key that names a row."""

from dataclasses import dataclass
from typing import Iterable, Mapping

FINGERPRINT = "fingerprint"  # every table has it: what made the row (see `provenance.fingerprint`)


@dataclass(frozen=True)
class Column:
    """One column: `kind` is "text", "integer", "real" (may be missing: NaN) or "flag"; `meaning` says the unit too."""

    kind: str
    meaning: str


def text(meaning: str) -> Column:
    """Words without line breaks; missing is the empty string."""
    return Column("text", meaning)


def integer(meaning: str) -> Column:
    """A whole number, never missing."""
    return Column("integer", meaning)


def real(meaning: str) -> Column:
    """A floating-point number; missing is NaN."""
    return Column("real", meaning)


def flag(meaning: str) -> Column:
    """True or false."""
    return Column("flag", meaning)


@dataclass(frozen=True)
class Schema:
    """One table: what a row is (`about`), its columns in order, the columns that name a row (`key`), and whether it is
    kept compressed because it is large.
    """

    name: str
    about: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    compressed: bool = False

    def __post_init__(self):
        unknown = [name for name in self.key if name not in self.columns]
        if unknown or not self.key:
            raise ValueError(f"table {self.name}: the key {self.key} must name columns of it; {unknown} are none")
        if FINGERPRINT in self.columns:
            raise ValueError(f"table {self.name}: {FINGERPRINT!r} is added to every table, leave it out")

    @property
    def file_name(self) -> str:
        """What its file is called in a run's folder `tables`."""
        return f"{self.name}.csv.xz" if self.compressed else f"{self.name}.csv"

    @property
    def names(self) -> list[str]:
        """All columns as the file has them, the fingerprint last."""
        return [*self.columns, FINGERPRINT]


SCHEMAS: dict[str, Schema] = {}  # every declared table by name; a study registers its own


def register(tables: Iterable[Schema]) -> None:
    """Declares tables, so that they can be written and read by name. ValueError where a name is another table's."""
    for table in tables:
        if SCHEMAS.setdefault(table.name, table) != table:
            raise ValueError(f"table {table.name!r} is declared already; give one of the two another name")
