"""A table keeps every row that was finished, whatever stops its writer, and takes only what its schema declares."""

import errno
import lzma
import multiprocessing
import os
import re
import signal
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.lab import atomic_file, provenance, tables
from lib.lab.tables import Column, Schema

COLUMNS = {"prompt": Column("text"), "budget": Column("integer", "draft nodes"), "rate": Column("real"),
           "cut": Column("flag")}
LIB, NOTEBOOKS, REFERENCE = (provenance.HOME / path for path in ("lib", "notebooks", "data/results/reference"))


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """A small table in addition to those of the notebooks."""
    monkeypatch.setitem(tables.schemas(), "plain", Schema("plain", ("prompt", "budget"), COLUMNS))


def row(budget: int, prompt: str = "p") -> dict:
    return {"prompt": prompt, "budget": budget, "rate": budget / 7, "cut": budget % 2 == 0}


def test_rows_come_back_as_they_went_in(tmp_path):
    rows = tables.Table(tmp_path, "plain", "f1")
    rows.append(**row(1))
    rows.extend([row(2), row(3, 'a "quoted", name'), row(4, "") | {"rate": float("nan")}])
    found = tables.read(tmp_path, "plain")
    assert list(found.columns) == [*COLUMNS, "fingerprint"]
    assert list(found.dtypes.astype(str)) == ["str", "int64", "float64", "bool", "str"]
    assert list(found.prompt) == ["p", "p", 'a "quoted", name', ""]
    assert found.rate[0] == 1 / 7 and np.isnan(found.rate[3]) and list(found.cut) == [False, True, False, True]
    assert rows.keys() == {("p", 1), ("p", 2), ('a "quoted", name', 3), ("", 4)}
    pd.testing.assert_frame_equal(rows.frame(), found)


def test_a_reopened_table_goes_on_with_rows_of_its_own_fingerprint_alone(tmp_path):
    tables.Table(tmp_path, "plain", "old").extend([row(1), row(2)])
    again = tables.Table(tmp_path, "plain", "old")
    assert again.keys() == {("p", 1), ("p", 2)}
    again.append(**row(3))
    assert tables.Table(tmp_path, "plain", "new").keys() == set()
    assert len(tables.read(tmp_path, "plain")) == 0
    assert tables.Table(tmp_path / "other run", "plain", "new").keys() == set()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_file_that_is_cut_off_is_named_and_a_writer_goes_on_behind_its_whole_rows(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    writer = tables.Table(folder, "plain", "f")
    writer.append(**row(1))
    before = len(writer.path.read_bytes())
    writer.append(**row(2))
    content = writer.path.read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    writer.path.write_bytes(content[:cut])
    try:
        assert len(tables.read(folder, "plain")) < 2  # cut at the end of a line, which the run's record notices
    except ValueError as error:
        assert str(writer.path) in str(error) and "run its notebook again" in str(error)
    again = tables.Table(folder, "plain", "f")
    assert ("p", 1) in again.keys() or cut < before, "a row that was whole is kept"
    again.extend([made for made in (row(1), row(2)) if (made["prompt"], made["budget"]) not in again.keys()])
    assert list(tables.read(folder, "plain").budget) == [1, 2]


def test_a_full_disk_is_named_with_its_file_and_costs_no_row(tmp_path, monkeypatch):
    writer = tables.Table(tmp_path, "plain", "f")
    writer.append(**row(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device.*cannot be written") as error:
        writer.append(**row(2))
    assert error.value.filename == str(writer.path)
    monkeypatch.undo()
    monkeypatch.setitem(tables.schemas(), "plain", writer.schema)
    assert list(tables.read(tmp_path, "plain").budget) == [1] and len(list(writer.path.parent.iterdir())) == 1
    writer.append(**row(2))
    assert list(tables.read(tmp_path, "plain").budget) == [1, 2]


def _write_for_ever(folder):
    writer = tables.Table(folder, "plain", "f")
    for budget in range(len(writer.keys()) // 2, 10**6):
        writer.extend([row(budget, "a"), row(budget, "b")])


def test_killed_writers_leave_whole_tables(tmp_path):
    start = multiprocessing.get_context("fork")
    for pause in (0.05, 0.11, 0.17):
        writer = start.Process(target=_write_for_ever, args=(tmp_path,))
        writer.start()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        if tables.exists(tmp_path, "plain"):
            found = tables.read(tmp_path, "plain")
            assert list(found.budget) == [budget for budget in range(len(found) // 2) for _ in range(2)]


@pytest.mark.parametrize(("change", "complaint"), [
    ({"budget": 1.5}, "column budget: 1.5 is not of kind integer.*draft nodes"),
    ({"budget": True}, "column budget: True is not of kind integer"),
    ({"prompt": 3}, "column prompt: 3 is not of kind text"),
    ({"prompt": "two\nlines"}, "column prompt"),
    ({"rate": "high"}, "column rate: 'high' is not of kind real"),
    ({"rate": None}, "column rate: None"),
    ({"cut": 1}, "column cut: 1 is not of kind flag"),
    ({"colour": "red"}, "unknown: \\['colour'\\]"),
])
def test_a_wrong_row_is_named_and_costs_nothing(tmp_path, change, complaint):
    writer = tables.Table(tmp_path, "plain", "f")
    writer.append(**row(1))
    with pytest.raises(ValueError, match=complaint):
        writer.append(**(row(2) | change))
    assert list(writer.frame().budget) == [1]


def test_missing_columns_and_second_rows_of_a_key_are_refused(tmp_path):
    writer = tables.Table(tmp_path, "plain", "f")
    with pytest.raises(ValueError, match="columns missing: \\['rate', 'cut'\\]"):
        writer.append(prompt="p", budget=1)
    writer.append(**row(1))
    for rows in ([row(1)], [row(2), row(2)]):
        with pytest.raises(ValueError, match="two rows of {'prompt': 'p', 'budget'"):
            writer.extend(rows)
    with pytest.raises(ValueError, match="two rows"):
        tables.write(tmp_path, "plain", [row(2), row(2)], "f")
    assert writer.keys() == {("p", 1)}


def test_a_table_written_whole_takes_the_place_of_the_old_one(tmp_path):
    tables.write(tmp_path, "plain", [row(1)], "f")
    tables.write(tmp_path, "plain", pd.DataFrame([row(2), row(3)], index=[7, 7]), "g")
    found = tables.read(tmp_path, "plain")
    assert list(found.budget) == [2, 3] and set(found.fingerprint) == {"g"}
    tables.write(tmp_path, "plain", [], "h")
    assert len(tables.read(tmp_path, "plain")) == 0


def test_tables_that_are_not_there_or_do_not_fit_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no table 'plain'.*run the notebook"):
        tables.read(tmp_path, "plain")
    tables.write(tmp_path, "plain", [row(1)], "f")
    path = tables.path_of(tmp_path, "plain")
    whole = path.read_text()
    path.write_text(whole.replace("p,1,", "p,one,"))
    with pytest.raises(ValueError, match="does not fit table plain"):
        tables.read(tmp_path, "plain")
    path.write_text(whole.replace("budget", "size"))
    with pytest.raises(ValueError, match="older version"):
        tables.read(tmp_path, "plain")
    path.write_text(whole[:-3])
    with pytest.raises(ValueError, match="is cut off; run its notebook again"):
        tables.read(tmp_path, "plain")
    assert tables.Table(tmp_path, "plain", "f").keys() == set()


def test_a_compressed_table_is_read_and_written_plain_and_columns_of_older_versions_are_left_out(tmp_path):
    tables.write(tmp_path, "plain", [row(1), row(2)], "f")
    plain = tables.path_of(tmp_path, "plain")
    packed = plain.with_suffix(".csv.xz")
    packed.write_bytes(lzma.compress(plain.read_bytes().replace(b"prompt,", b"prompt,old,").replace(b"p,", b"p,7,")))
    plain.unlink()
    assert tables.path_of(tmp_path, "plain") == packed
    assert list(tables.read(tmp_path, "plain")) == [*COLUMNS, "fingerprint"]
    content = packed.read_bytes()
    for cut in (content[:-9], content[9:]):
        packed.write_bytes(cut)
        with pytest.raises(ValueError, match="plain.csv.xz is damaged"):
            tables.read(tmp_path, "plain")
    packed.write_bytes(content)
    tables.Table(tmp_path, "plain", "f").append(**row(3))
    assert list(tables.read(tmp_path, "plain").budget) == [1, 2, 3] and plain.exists() and not packed.exists()


def test_every_table_and_column_is_explained_and_written_by_some_code():
    """And no declaration contradicts itself."""
    sources = [path.read_text() for folder in LIB.iterdir() if folder.name not in ("tests", "lab")
               for path in [folder, *folder.rglob("*")] if path.suffix == ".py"]
    sources += [path.read_text() for path in NOTEBOOKS.glob("*.ipynb")]
    words = set(re.findall(r"\w+", " ".join(sources)))
    for name, schema in tables.schemas().items():
        unwritten = [column for column in schema.columns if re.sub(r"_(low|high|\d+)$", "", column) not in words]
        assert name in words | {"plain"} and not unwritten, f"table {name}: no code writes {unwritten or 'it'}"
        assert name == "plain" or schema.about and all(len(column.meaning) > 3 for column in schema.columns.values())
        assert schema.key and set(schema.key) <= set(schema.columns) and "fingerprint" not in schema.columns
        assert {column.kind for column in schema.columns.values()} <= set(tables.DTYPES)


def test_every_committed_table_is_declared_and_can_be_read():
    names = {path.name.partition(".")[0] for path in (REFERENCE / "tables").iterdir()}
    assert names and all(len(tables.read(REFERENCE, name).columns) > 1 for name in names)
