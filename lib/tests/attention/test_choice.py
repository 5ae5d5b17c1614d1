"""What `auto` takes: the fastest of the nearest measured cell on the same kind of machine, else the default."""

import pandas as pd
import pytest
import torch

from lib.attention import choice, choose_backend, operator
from lib.attention.backends import BACKENDS
from lib.lab import tables

COLUMNS = list(tables.schema_of("attention_choice").columns)


def situation(**changes):
    return choice.Situation(**{"kind": "k", "dtype": "float32", "blocks": 8, "prefix": 1000, "rows": 64,
                               "head_dim": 128, **changes})


@pytest.fixture
def table(tmp_path):
    """Two cells: few rows, where folded is faster, and many, where onepass is."""
    rows = [("k", "float32", 8, 1024, rows, 128, name, ms) for rows, times in ((4, (1.0, 2.0)), (256, (9.0, 5.0)))
            for name, ms in zip(("folded", "onepass"), times)]
    path = tmp_path / "table.csv"
    pd.DataFrame(rows, columns=COLUMNS).to_csv(path, index=False)
    return path


def test_the_nearest_cell_decides(table):
    few, many = (choice.ranked(situation(rows=rows), table) for rows in (8, 200))
    assert few == ["folded", "onepass", "folded"] and many == ["onepass", "folded", "folded"]


@pytest.mark.parametrize("unknown", [{"kind": "another"}, {"dtype": "float16"}])
def test_where_nothing_is_known_the_default_is_taken(table, unknown):
    assert choice.ranked(situation(**unknown), table) == [choice.DEFAULT]
    assert choice.ranked(situation(), table.with_name("none.csv")) == [choice.DEFAULT]


def test_a_gpu_without_times_takes_those_of_the_one_that_was_measured():
    measured = choice.ranked(situation(kind="cuda sm_90", dtype="bfloat16"))
    assert set(measured) == {"folded", "split", "triton"}
    assert choice.ranked(situation(kind="cuda sm_80", dtype="bfloat16")) == measured


def test_rows_of_many_lengths_on_a_gpu_share_one_call():
    """256 rows that were served one after another took 20 times as long as in one call."""
    measured = situation(kind="cuda sm_90", dtype="bfloat16")
    assert choice.ranked(measured)[0] in choice.LENGTHS_APART and choice.ranked(measured, calls=256)[0] == "triton"


def test_a_processor_does_the_same_work_for_rows_of_many_lengths(monkeypatch):
    asked = []
    monkeypatch.setattr(operator, "ranked", lambda call, calls: asked.append(calls) or ["folded"])
    monkeypatch.setattr(operator, "_REMEMBERED", {})
    query, key = torch.zeros(2, 4, 3, 16), torch.zeros(2, 2, 9, 16)
    assert operator.auto(query, key, key, [3, 6]) == "folded" and asked == [1]


def test_prefixes_that_are_near_each_other_share_an_answer(monkeypatch):
    """A decoder's prefix grows by a few tokens a round; its choice is looked up, not searched, each time."""
    asked = []
    monkeypatch.setattr(operator, "ranked", lambda call, calls: asked.append(call.prefix) or ["folded"])
    monkeypatch.setattr(operator, "_REMEMBERED", {})
    query, key = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 1, 16)
    assert {operator.auto(query, key, key, [prefix]) for prefix in range(4000, 4100)} == {"folded"}
    assert asked == [4000, 4096]


def test_a_generation_of_processors_without_times_takes_those_of_the_nearest(table, monkeypatch):
    kinds = []
    for flags in ({"avx512f"}, {"avx512f", "avx512_bf16"}, {"avx512f", "avx512_bf16", "amx_tile"}):
        monkeypatch.setattr(choice.processor, "flags", lambda: flags)
        kinds.append(choice.device_kind("cpu"))
    assert kinds == ["cpu avx512f", "cpu avx512_bf16", "cpu amx_tile"]
    monkeypatch.setitem(choice.SIMILAR, kinds[0], "k")
    assert choice.ranked(situation(kind=kinds[0]), table) == choice.ranked(situation(kind="k"), table)


def test_the_table_that_comes_with_the_project_names_backends_and_fits_its_schema():
    rows = pd.read_csv(choice.TABLE)
    assert set(rows["backend"]) <= set(BACKENDS) and (rows["median_ms"] > 0).all()
    assert set(COLUMNS) <= set(rows)


def test_what_cannot_serve_is_passed_over(table, monkeypatch):
    monkeypatch.setattr(choice.ranked, "__defaults__", (table, 1))
    query, key = torch.randn(1, 64, 64, 12), torch.randn(1, 8, 1100, 12)  # heads of 12: not a multiple of 8
    monkeypatch.setattr(choice, "device_kind", lambda device: "k")
    assert choice.ranked(choice.situation(query, key, 1000))[0] == "onepass"
    assert choose_backend(query, key, key, 1000) == "folded"
