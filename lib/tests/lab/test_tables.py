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

COLUMNS = {"prompt": "text", "budget": "integer", "rate": "real", "cut": "flag"}
LIB, NOTEBOOKS, REFERENCE = (provenance.HOME / path for path in ("lib", "notebooks", "data/results/reference"))


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    """A small table in addition to those of the notebooks."""
    monkeypatch.setitem(tables.schemas(), "plain", tables.Schema("plain", ("prompt", "budget"), COLUMNS))


def row(budget: int, prompt: str = "p") -> dict:
    return {"prompt": prompt, "budget": budget, "rate": budget / 7, "cut": budget % 2 == 0}


def test_rows_come_back_as_they_went_in(tmp_path):
    """Of Python's types and NumPy's, from dicts and frames."""
    writer = tables.Table(tmp_path, "02_plain", "f1")
    writer.append(**row(1))
    writer.extend([row(np.int64(2)), row(3, 'a "quoted", name'), row(4, "") | {"rate": float("nan")}])
    writer.extend(pd.DataFrame([row(5), row(6)], index=[7, 7]))
    rows = tables.read(tmp_path, "02_plain")
    assert list(rows.columns) == [*COLUMNS, "fingerprint"]
    assert list(rows.dtypes.astype(str)) == ["str", "int64", "float64", "bool", "str"]
    assert list(rows.prompt) == ["p", "p", 'a "quoted", name', "", "p", "p"]
    assert rows.rate[0] == 1 / 7 and np.isnan(rows.rate[3]) and list(rows.cut) == [False, True] * 3
    assert writer.keys() == set(zip(rows.prompt, rows.budget))
    pd.testing.assert_frame_equal(writer.frame(), rows)


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
def test_of_a_file_that_is_cut_off_the_whole_rows_count(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    writer = tables.Table(folder, "plain", "f")
    ends = [len(writer.path.read_bytes())]
    for budget in (1, 2):
        writer.append(**row(budget))
        ends.append(len(writer.path.read_bytes()))
    cut = data.draw(st.integers(0, ends[-1] - 1))
    os.truncate(writer.path, cut)
    whole = [budget for budget in (1, 2) if ends[budget] <= cut]
    if cut >= ends[0]:
        assert list(tables.read(folder, "plain").budget) == whole
    again = tables.Table(folder, "plain", "f")
    assert again.keys() == {("p", budget) for budget in whole}
    again.extend(row(budget) for budget in (1, 2) if budget not in whole)
    assert list(tables.read(folder, "plain").budget) == [1, 2]


def test_a_full_disk_is_named_with_its_file_and_costs_no_row(tmp_path, monkeypatch):
    writer = tables.Table(tmp_path, "plain", "f")
    writer.append(**row(1))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left.*cannot be written") as error:
        patch.setattr(atomic_file.os, "fsync", full)
        writer.append(**row(2))
    assert error.value.filename == str(writer.path) and len(list(writer.path.parent.iterdir())) == 1
    assert list(tables.read(tmp_path, "plain").budget) == [1]
    writer.append(**row(2))
    assert list(tables.read(tmp_path, "plain").budget) == [1, 2]


def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


def write_for_ever(folder):
    writer = tables.Table(folder, "plain", "f")
    for budget in range(len(writer.keys()) // 2, 10**6):
        writer.extend([row(budget, name) for name in "ab" if (name, budget) not in writer.keys()])


def test_killed_writers_leave_whole_tables(tmp_path):
    start = multiprocessing.get_context("fork")
    for pause in (0.05, 0.11, 0.17):
        writer = start.Process(target=write_for_ever, args=(tmp_path,))
        writer.start()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        if tables.path_of(tmp_path, "plain").exists():
            rows = tables.read(tmp_path, "plain")
            assert list(zip(rows.budget, rows.prompt)) == [(index // 2, "ab"[index % 2]) for index in range(len(rows))]


@pytest.mark.parametrize(("change", "complaint"), [
    ({"budget": 1.5}, "column budget: 1.5 is not of kind integer"),
    ({"budget": True}, "column budget: True is not of kind integer"),
    ({"prompt": 3}, "column prompt: 3 is not of kind text"),
    ({"prompt": "two\nlines"}, "column prompt"),
    ({"rate": "high"}, "column rate: 'high' is not of kind real"),
    ({"rate": None}, "column rate: None"),
    ({"cut": 1}, "column cut: 1 is not of kind flag"),
    ({"colour": "red"}, "missing or unknown: \\['colour'\\]"),
    ({"budget": 1}, "two rows of {'prompt': 'p', 'budget': 1}"),
])
def test_a_wrong_row_is_named_and_costs_nothing(tmp_path, change, complaint):
    """Nor do the rows that come with it."""
    writer = tables.Table(tmp_path, "plain", "f")
    writer.append(**row(1))
    with pytest.raises(ValueError, match=complaint):
        writer.extend([row(3), row(2) | change])
    assert list(writer.frame().budget) == list(tables.read(tmp_path, "plain").budget) == [1]
    with pytest.raises(ValueError, match="missing or unknown: \\['cut', 'rate'\\]"):
        writer.append(prompt="p", budget=2)


def test_a_table_written_whole_takes_the_place_of_the_old_one(tmp_path):
    tables.write(tmp_path, "plain", [row(1)], "f")
    tables.write(tmp_path, "plain", [row(2), row(3)], "g")
    rows = tables.read(tmp_path, "plain")
    assert list(rows.budget) == [2, 3] and set(rows.fingerprint) == {"g"}
    with pytest.raises(ValueError, match="two rows"):
        tables.write(tmp_path, "plain", [row(2), row(2)], "f")
    tables.write(tmp_path, "plain", [], "h")
    assert len(tables.read(tmp_path, "plain")) == 0


def test_tables_that_are_not_there_or_do_not_fit_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no table 'plain'.*run the notebook"):
        tables.read(tmp_path, "plain")
    tables.write(tmp_path, "plain", [row(1)], "f")
    path = tables.path_of(tmp_path, "plain")
    whole = path.read_text()
    for before, after in (("p,1,", "p,one,"), ("budget", "size"), (whole, "")):
        path.write_text(whole.replace(before, after))
        with pytest.raises(ValueError, match="is damaged or of an older version.*run its notebook again"):
            tables.read(tmp_path, "plain")
    assert tables.Table(tmp_path, "plain", "f").keys() == set()


def test_a_compressed_table_is_read_and_written_plain_and_columns_of_older_versions_are_left_out(tmp_path):
    tables.write(tmp_path, "plain", [row(1), row(2)], "f")
    plain = tables.path_of(tmp_path, "plain")
    packed = plain.with_suffix(".csv.xz")
    content = lzma.compress(plain.read_bytes().replace(b"prompt,", b"prompt,old,").replace(b"p,", b"p,7,"))
    plain.unlink()
    for cut in (content[:-9], content[9:]):
        packed.write_bytes(cut)
        with pytest.raises(ValueError, match="plain.csv.xz is damaged"):
            tables.read(tmp_path, "plain")
    packed.write_bytes(content)
    assert list(tables.read(tmp_path, "plain")) == [*COLUMNS, "fingerprint"]
    tables.Table(tmp_path, "plain", "f").append(**row(3))
    assert list(tables.read(tmp_path, "plain").budget) == [1, 2, 3] and plain.exists() and not packed.exists()


def test_every_table_and_column_is_explained_and_written_by_some_code():
    """And no declaration contradicts itself."""
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
