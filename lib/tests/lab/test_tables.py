"""A table keeps every row that was finished, whatever stops its writer, and takes only what its schema declares."""

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib.studies  # declares the tables
from lib.lab import atomic_file, tables
from lib.lab.tables import SCHEMAS, Column, Schema, columns

COLUMNS = columns("""
    prompt text name of the prompt
    budget integer draft nodes
    rate real a share
    cut flag whether it was cut
    """)


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """Two small tables, one of them compressed, in addition to those of the studies."""
    for compressed in (False, True):
        schema = Schema("packed" if compressed else "plain", "for tests", ("prompt", "budget"), COLUMNS, compressed)
        monkeypatch.setitem(SCHEMAS, schema.name, schema)


def row(budget: int, prompt: str = "p") -> dict:
    return {"prompt": prompt, "budget": budget, "rate": budget / 7, "cut": budget % 2 == 0}


both = pytest.mark.parametrize("name", ["plain", "packed"])


@both
def test_rows_come_back_as_they_went_in(tmp_path, name):
    rows = tables.Table(tmp_path, name, "f1")
    rows.append(**row(1))
    rows.extend([row(2), row(3, 'a "quoted", name'), row(4, "") | {"rate": float("nan")}])
    found = tables.read(tmp_path, name)
    assert list(found.columns) == [*COLUMNS, "fingerprint"]
    assert list(found.dtypes.astype(str)) == ["str", "int64", "float64", "bool", "str"]
    assert list(found.prompt) == ["p", "p", 'a "quoted", name', ""]
    assert found.rate[0] == 1 / 7 and np.isnan(found.rate[3]) and list(found.cut) == [False, True, False, True]
    assert rows.keys() == {("p", 1), ("p", 2), ('a "quoted", name', 3), ("", 4)}
    pd.testing.assert_frame_equal(rows.frame(), found)


@both
def test_a_reopened_table_goes_on_with_rows_of_its_own_fingerprint_alone(tmp_path, name):
    tables.Table(tmp_path, name, "old").extend([row(1), row(2)])
    again = tables.Table(tmp_path, name, "old")
    assert again.keys() == {("p", 1), ("p", 2)}
    again.append(**row(3))
    assert tables.Table(tmp_path, name, "new").keys() == set()
    assert len(tables.read(tmp_path, name)) == 0
    assert tables.Table(tmp_path / "other run", name, "new").keys() == set()


@both
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_file_that_is_cut_off_is_named_and_a_writer_goes_on_behind_its_whole_rows(tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("cut")
    writer = tables.Table(folder, name, "f")
    writer.append(**row(1))
    before = len(writer.path.read_bytes())
    writer.append(**row(2))
    content = writer.path.read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    writer.path.write_bytes(content[:cut])
    try:
        assert len(tables.read(folder, name)) < 2  # cut at the end of a line, which the run's record notices
    except ValueError as error:
        assert str(writer.path) in str(error) and "run its notebook again" in str(error)
    again = tables.Table(folder, name, "f")
    assert ("p", 1) in again.keys() or cut < before, "a row that was whole is kept"
    again.extend([made for made in (row(1), row(2)) if (made["prompt"], made["budget"]) not in again.keys()])
    assert list(tables.read(folder, name).budget) == [1, 2]


@both
def test_a_full_disk_is_named_with_its_file_and_costs_no_row(tmp_path, name, monkeypatch):
    writer = tables.Table(tmp_path, name, "f")
    writer.append(**row(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device.*cannot be written") as error:
        writer.append(**row(2))
    assert error.value.filename == str(writer.path)
    monkeypatch.undo()
    monkeypatch.setitem(SCHEMAS, name, writer.schema)
    assert list(tables.read(tmp_path, name).budget) == [1] and len(list(writer.path.parent.iterdir())) == 1
    writer.append(**row(2))
    assert list(tables.read(tmp_path, name).budget) == [1, 2]


def _write_for_ever(folder, name):
    SCHEMAS[name] = Schema(name, "", ("prompt", "budget"), COLUMNS, name == "packed")
    writer = tables.Table(folder, name, "f")
    for budget in range(len(writer.keys()) // 2, 10**6):
        writer.extend([row(budget, "a"), row(budget, "b")])


@both
def test_killed_writers_leave_whole_tables(tmp_path, name):
    start = multiprocessing.get_context("fork")
    for pause in (0.05, 0.11, 0.17):
        writer = start.Process(target=_write_for_ever, args=(tmp_path, name))
        writer.start()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        if tables.exists(tmp_path, name):
            found = tables.read(tmp_path, name)
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


@both
def test_a_table_written_whole_takes_the_place_of_the_old_one(tmp_path, name):
    tables.write(tmp_path, name, [row(1)], "f")
    tables.write(tmp_path, name, pd.DataFrame([row(2), row(3)], index=[7, 7]), "g")
    found = tables.read(tmp_path, name)
    assert list(found.budget) == [2, 3] and set(found.fingerprint) == {"g"}
    tables.write(tmp_path, name, [], "h")
    assert len(tables.read(tmp_path, name)) == 0


def test_without_a_run_rows_go_with_their_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = tables.Table("", "plain", "f")
    rows.append(**row(1))
    assert len(rows.frame()) == 1
    tables.write("", "plain", [row(1)], "f")
    path = rows.path
    del rows
    assert not path.exists() and not list(tmp_path.iterdir())


def test_tables_that_are_not_there_or_do_not_fit_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no table 'plain'.*run the notebook"):
        tables.read(tmp_path, "plain")
    with pytest.raises(ValueError, match="no table is called 'plane'.*plain"):
        tables.read(tmp_path, "plane")
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


def test_the_dictionary_explains_every_column_of_every_table():
    found = tables.dictionary()
    assert set(found.table) == set(SCHEMAS)
    assert found.meaning.str.len().min() > 3
    assert list(tables.dictionary(["plain"]).column) == list(COLUMNS)


def test_columns_are_declared_a_line_each_and_shared_by_name():
    shared = columns("pair text target/drafter\nbudget integer draft nodes")
    assert columns("budget pair\n  speed interval tokens per second", shared) == {
        "budget": Column("integer", "draft nodes"), "pair": Column("text", "target/drafter"),
        "speed": Column("real", "tokens per second"),
        "speed_low": Column("real", "lower end of the 95 % interval of speed"),
        "speed_high": Column("real", "upper end of the 95 % interval of speed")}
    with pytest.raises(ValueError, match="column 'family' is not shared"):
        columns("budget family", shared)


def test_the_committed_tables_can_be_read():
    run = Path(lib.studies.__file__).parents[2] / "data" / "results" / "reference"
    found = [name for name in SCHEMAS if tables.exists(run, name)]
    assert found and all(set(SCHEMAS[name].columns) <= set(tables.read(run, name)) for name in found)


def test_a_schema_refuses_a_key_that_is_no_column():
    with pytest.raises(ValueError, match="key"):
        Schema("wrong", "", ("prompts",), COLUMNS)
