"""A table keeps every row that was finished, whatever stops its writer, and takes only what its schema declares."""

import errno
import lzma
import os
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.lab import atomic_file, provenance, tables

COLUMNS = {"prompt": "text", "budget": "integer", "rate": "real", "cut": "flag"}
LIB, NOTEBOOKS, REFERENCE = (provenance.HOME / path for path in ("lib", "notebooks", "data/results/reference"))


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """A small table in addition to those of the notebooks."""
    monkeypatch.setitem(tables.schemas(), "plain", tables.Schema("plain", ("prompt", "budget"), COLUMNS))


def row(budget: int, prompt: str = "p") -> dict:
    return {"prompt": prompt, "budget": budget, "rate": budget / 7, "cut": budget % 2 == 0}


def budgets(folder) -> list[int]:
    return tables.read(folder, "plain")["budget"].tolist()


def test_rows_come_back_as_they_went_in_and_a_reopened_table_keeps_those_of_its_fingerprint(tmp_path):
    """Of Python's types and NumPy's, from dicts and frames."""
    writer = tables.Table(tmp_path, "plain", "f1")
    writer.extend([row(1)])
    writer.extend([row(np.int64(2)), row(3, 'a "quoted", name'), row(4, "") | {"rate": float("nan")}])
    writer.extend(pd.DataFrame([row(5), row(6)], index=[7, 7]))
    rows = tables.read(tmp_path, "plain")
    assert list(rows) == [*COLUMNS, "fingerprint"]
    assert rows.dtypes.astype(str).tolist() == ["str", "int64", "float64", "bool", "str"]
    assert list(rows.prompt) == ["p", "p", 'a "quoted", name', "", "p", "p"]
    assert rows.rate[0] == 1 / 7 and np.isnan(rows.rate[3]) and list(rows.cut) == [False, True] * 3
    pd.testing.assert_frame_equal(writer.frame(), rows)
    again = tables.Table(tmp_path, "plain", "f1")
    assert again.keys() == writer.keys() == set(zip(rows.prompt, rows.budget))
    assert not tables.Table(tmp_path, "plain", "f2").keys() and not len(tables.read(tmp_path, "plain"))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_of_a_file_that_is_cut_off_the_whole_rows_count(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    writer = tables.Table(folder, "plain", "f")
    ends = [writer.path.stat().st_size]
    for budget in (1, 2):
        writer.extend([row(budget)])
        ends.append(writer.path.stat().st_size)
    cut = data.draw(st.integers(0, ends[-1] - 1))
    os.truncate(writer.path, cut)
    whole = [budget for budget in (1, 2) if ends[budget] <= cut]
    assert cut < ends[0] or budgets(folder) == whole
    again = tables.Table(folder, "plain", "f")
    assert again.keys() == {("p", budget) for budget in whole}
    again.extend(row(budget) for budget in (1, 2) if budget not in whole)
    assert budgets(folder) == [1, 2]


def test_a_full_disk_leaves_a_table_as_it_was(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = tables.Table(tmp_path, "plain", "f")
    writer.extend([row(1)])
    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        tables.Table(tmp_path, "plain", "g")
    assert [*writer.path.parent.iterdir()] == [writer.path] and budgets(tmp_path) == [1]


@pytest.mark.parametrize(("change", "complaint"), [
    ({"budget": 1.5}, "column budget: 1.5 is not of kind integer"),
    ({"prompt": 3}, "column prompt: 3 is not of kind text"),
    ({"prompt": "two\nlines"}, "column prompt"),
    ({"rate": None}, "column rate: None is not of kind real"),
    ({"cut": 1}, "column cut: 1 is not of kind flag"),
    ({"colour": "red"}, r"missing or unknown: \['colour'\]"),
    ({"budget": 1}, "two rows of {'prompt': 'p', 'budget': 1}"),
    ({"budget": 3}, "two rows of {'prompt': 'p', 'budget': 3}"),
])
def test_a_wrong_row_is_named_and_costs_no_row_beside_it(tmp_path, change, complaint):
    writer = tables.Table(tmp_path, "plain", "f")
    writer.extend([row(1)])
    with pytest.raises(ValueError, match=complaint):
        writer.extend([row(3), row(2) | change])
    assert list(writer.frame().budget) == budgets(tmp_path) == [1]


def test_tables_that_are_not_there_or_do_not_fit_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no table 'plain'.*run the notebook"):
        tables.read(tmp_path, "plain")
    tables.Table(tmp_path, "plain", "f").extend([row(1)])
    path = tables.path_of(tmp_path, "plain")
    content = path.read_bytes()
    damaged = {path: [content.replace(b"p,1,", b"p,one,"), content.replace(b"budget", b"size"), b""],
               path.with_suffix(".csv.xz"): [lzma.compress(content)[:-9], lzma.compress(content)[9:]]}
    path.unlink()
    for place, contents in damaged.items():
        for content in contents:
            place.write_bytes(content)
            with pytest.raises(ValueError, match=f"{place.name} is damaged or of an older.*run its notebook again"):
                tables.read(tmp_path, "plain")
        place.unlink()


def test_a_compressed_table_is_written_plain_and_columns_of_older_versions_are_left_out(tmp_path):
    tables.Table(tmp_path, "plain", "f").extend([row(1), row(2)])
    plain = tables.path_of(tmp_path, "plain")
    packed = plain.with_suffix(".csv.xz")
    packed.write_bytes(lzma.compress(plain.read_bytes().replace(b"prompt,", b"prompt,old,").replace(b"p,", b"p,7,")))
    plain.unlink()
    assert list(tables.read(tmp_path, "plain")) == [*COLUMNS, "fingerprint"]
    tables.Table(tmp_path, "plain", "f").extend([row(3)])
    assert budgets(tmp_path) == [1, 2, 3] and plain.exists() and not packed.exists()


def test_every_table_and_column_is_explained_and_written_by_some_code():
    paths = [path for path in LIB.rglob("*.py") if path.relative_to(LIB).parts[0] not in ("tests", "lab")]
    words = set(re.findall(r"\w+", " ".join(path.read_text() for path in [*paths, *NOTEBOOKS.glob("*.ipynb")])))
    rows = pd.read_csv(tables.DECLARED, keep_default_na=False)
    assert rows["meaning"].str.len().gt(3).all()
    assert set(rows["table"]) == set(rows.loc[rows["column"] == "", "table"]) == {*tables.schemas()} - {"plain"} <= words
    for name, schema in tables.schemas().items():
        unwritten = [column for column in schema.kinds if re.sub(r"_(low|high|\d+)$", "", column) not in words]
        assert not unwritten, f"table {name}: no code writes {unwritten}"
        assert schema.key and set(schema.key) <= set(schema.kinds) and "fingerprint" not in schema.kinds
        assert set(schema.kinds.values()) <= set(tables.KINDS)


def test_every_committed_table_is_declared_and_can_be_read():
    names = {path.name.partition(".")[0] for path in (REFERENCE / "tables").iterdir()}
    assert names and all(len(tables.read(REFERENCE, name).columns) > 1 for name in names)
