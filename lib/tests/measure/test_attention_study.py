"""The study of attention: each cell gives a row per alternative, with times or a reason; the peaks of the machine."""

import dataclasses
import time

import pandas as pd
import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from lib.attention.operator import tree_attention
from lib.lab import processor, timing
from lib.lab.chapter import Store
from lib.lab.tables import read, schemas
from lib.measure import attention as study

QUICK = [name for name in study.PREPARE if name != study.FLEX]
PEAKS = pd.Series({"bandwidth": 1e10, "throughput float32": 1e11})


def measured(cell, **changes):
    limits = {"seconds": 2.0, "memory_gb": 1.0, "repeats": 3, **changes}
    return study.time_cell(cell, QUICK, generator=torch.Generator().manual_seed(0), **limits)


def by_name(rows):
    return {row["alternative"]: row for row in rows}


def test_a_cell_gives_a_row_for_every_alternative_in_the_table_s_columns():
    """A plain token is a cell like any other."""
    for cell in (study.Cell(2, 16, 5, "float32", 4, 2, 8), study.Cell(1, 8, 1, "float32", 4, 2, 8)):
        rows = measured(cell)
        assert [row["alternative"] for row in rows] == QUICK
        assert all(list(row) == list(schemas()["attention"].columns) for row in rows)
        timed = [row for row in rows if not row["skipped"].startswith("refused: ")]
        assert {row["alternative"] for row in timed} >= {"auto", "folded", "onepass", "dense mask", "node by node"}
        assert all(row["repeats"] == 3 and 0 < row["lower_ms"] <= row["median_ms"] <= row["upper_ms"] for row in timed)
    names = [field.name for field in dataclasses.fields(study.Cell)]
    assert (*names, "alternative") == schemas()["attention"].key


def test_a_run_fills_its_tables_and_goes_on_with_the_next_cell(tmp_path, monkeypatch):
    """What a table holds is not measured again; the memory limit skips with its reason."""
    asked = dict(device="cpu", batches=[1, 2], prefixes=[8], dtypes=["float32"], query_heads=4, kv_heads=2, head_dim=8,
                 shape="kary:2", repeats=3, cell_seconds=1.0, memory_limit_gb=1.0, compiled=False, seed=0)
    monkeypatch.setattr(study, "SIZES", {"cpu": (16,)})
    study.measure(Store(tmp_path, "mark"), drafts=[1], **asked)
    first, time_cell, cells = read(tmp_path, "attention"), study.time_cell, []
    monkeypatch.setattr(study, "time_cell", lambda cell, *names, **limits: cells.append(cell) or time_cell(
        cell, *names, **limits))
    study.measure(Store(tmp_path, "mark"), drafts=[1, 4], **asked)
    assert [(cell.batch, cell.draft) for cell in cells] == [(1, 4), (2, 4), (1, 4)]  # the last with cold caches
    rows = read(tmp_path, "attention")
    assert len(rows) == 4 * len(QUICK) and rows["median_ms"][: len(first)].equals(first["median_ms"])
    cold = read(tmp_path, "attention_cold")
    assert set(cold["batch"]) == {1} and set(cold["alternative"]) == set(study.COLD)
    assert len(read(tmp_path, "attention_roofline")) == 4
    peaks = read(tmp_path, "peaks").set_index("what")
    assert peaks["unit"].to_dict() == {"bandwidth": "bytes/s", "throughput float32": "operations/s"}
    assert peaks["value"].between(1e6, 1e15).all() and set(peaks["threads"]) == {torch.get_num_threads()}


def test_what_does_not_fit_is_skipped_with_the_reason_before_it_is_made():
    """Inputs over the memory limit, or one alternative's copies over it."""
    huge = study.Cell(10**6, 10**6, 64, "float32", 32, 8, 128)
    assert all("keys and values need" in row["skipped"] and row["repeats"] == 0 for row in measured(huge))
    rows = by_name(measured(study.Cell(1, 512, 32, "float32", 4, 2, 8), memory_gb=5e-4))
    assert "memory: needs" in rows["branch batch"]["skipped"] and not rows["folded"]["skipped"]


def test_what_fails_is_a_row_with_the_reason(monkeypatch):
    """A compiler's refusal of one alternative must not cost the times of the others."""
    def broken(problem):
        raise RuntimeError("no valid kernel\nand a long trace")

    monkeypatch.setitem(study.PREPARE, "onepass", broken)
    rows = by_name(measured(study.Cell(1, 8, 4, "float32", 4, 2, 8)))
    assert rows["onepass"]["skipped"] == "failed: RuntimeError: no valid kernel" and rows["folded"]["repeats"] == 3


def test_an_alternative_that_would_take_too_long_is_found_by_a_smaller_call(monkeypatch):
    """The whole cell is never tried."""
    prefixes = []

    def slow(problem):
        prefixes.append(problem.prefix)
        return lambda: time.sleep(0.5)

    monkeypatch.setitem(study.PREPARE, "onepass", slow)
    rows = by_name(measured(study.Cell(1, 4096, 32, "float32", 4, 2, 8), seconds=0.5))
    assert prefixes == [study.ESTIMATED] and "estimated from 0.5" in rows["onepass"]["skipped"]
    assert "time: 3 calls of" in rows["onepass"]["skipped"] and not rows["folded"]["skipped"]


def test_a_number_format_without_units_is_not_measured_and_the_table_says_so(monkeypatch, tmp_path):
    """A processor with AVX2 alone."""
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx2", "fma"}))
    monkeypatch.setattr(study, "make_problem", lambda *inputs: pytest.fail("inputs were made"))
    rows = measured(study.Cell(1, 8, 4, "bfloat16", 4, 2, 8))
    assert {row["skipped"] for row in rows} == {"refused: the processor has no units for bfloat16"}
    cells = [study.Cell(1, 8, 4, dtype, 4, 2, 8) for dtype in ("float32", "bfloat16")]
    assert set(study.roofline_rows(cells, PEAKS)["dtype"]) == {"float32"}
    asked = dict(device="cpu", batches=[1], prefixes=[8], drafts=[1], head_dim=8, shape="kary:2", repeats=3,
                 cell_seconds=1.0, memory_limit_gb=1.0, compiled=False, seed=0)
    with pytest.raises(ValueError, match=r"\['bfloat16'\], and the processor has no units .* add 'float32'"):
        study.measure(Store(tmp_path, "mark"), dtypes=["bfloat16"], query_heads=4, kv_heads=2, **asked)
    with pytest.raises(ValueError, match="5 over kv_heads 2"):
        study.measure(Store(tmp_path, "mark"), dtypes=["float32"], query_heads=5, kv_heads=2, **asked)


def test_all_alternatives_agree_with_the_reference_to_their_dtype_s_precision():
    within = {"float32": 1e-6, "bfloat16": 6e-3}
    for dtype in within:
        if processor.slow_dtype(getattr(torch, dtype)) is None:
            errors = study.error_rows(study.Cell(2, 64, 9, dtype, 8, 2, 16)).set_index("alternative")["error"]
            assert {"auto", "folded", "onepass", "path by path", "node by node"} <= set(errors.index) <= set(QUICK)
            assert errors.max() < within[dtype]


@torch.no_grad()
def test_compiled_flex_attention_equals_the_reference_and_no_new_prefix_compiles_anew():
    compiled = []
    for prefix in (20, 33, 150, 77):
        p = study.make_problem(study.Cell(2, prefix, 9, "float32", 4, 2, 16), torch.Generator().manual_seed(prefix))
        try:
            run = study.PREPARE[study.FLEX](p)
        except Exception as error:  # compilers raise errors of many kinds
            pytest.skip(f"it cannot be compiled here: {error}")
        truth = tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix, backend="reference")
        torch.testing.assert_close(run(), truth, rtol=0, atol=2e-6)
        compiled.append(counters["stats"]["unique_graphs"])
    assert compiled[1:] == compiled[:1] * 3


def test_a_cell_s_roofline_is_the_longer_of_reading_and_arithmetic():
    """Few nodes wait for memory, many for arithmetic."""
    cells = [study.Cell(1, 1000, draft, "float32", 8, 2, 64) for draft in (1, 200)]
    few, many = study.roofline_rows(cells, PEAKS).to_dict("records")
    assert few["bytes"] == 2 * 2 * 1001 * 64 * 4 + 2 * 8 * 64 * 4
    assert few["operations"] == 4 * 64 * 8 * 1001
    assert few["least_ms"] == pytest.approx(1e3 * few["bytes"] / 1e10)
    assert many["least_ms"] == pytest.approx(1e3 * many["operations"] / 1e11)


@pytest.mark.parametrize("fastest", range(3))
def test_whichever_call_is_fastest_makes_the_throughput(fastest, monkeypatch):
    """Also the attention kernel, so that none of its cells can lie above a roof that it helped to find."""
    calls = [(1, 1.0 if place == fastest else 2.0) for place in range(3)]
    monkeypatch.setattr(study, "counted_calls", lambda dtype, device: iter(calls))
    monkeypatch.setattr(study, "bytes_per_second", lambda device, seconds: 1.0)
    monkeypatch.setattr(timing, "shortest", lambda call, device, seconds: call)
    assert study.peak_rows(["float32"])["value"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_do_the_operations_that_they_count(dtype, monkeypatch):
    """By torch's own count, which cannot see the kernel's."""
    monkeypatch.setattr(study, "SIZES", {"cpu": (16, 32)})
    for size, (operations, call) in zip((16, 32), study.counted_calls(dtype, "cpu")):
        with FlopCounterMode(display=False) as counted:
            call()
        assert counted.get_total_flops() == operations == 2 * size**3


def test_memory_is_read_beyond_the_caches(monkeypatch):
    monkeypatch.setattr(timing, "shortest", lambda call, device, seconds: call().numel() and 1.0)  # one second a call
    for cache, read_bytes in ((2**20, study.LEAST_READ), (200 * 2**20, 400 * 2**20)):
        monkeypatch.setattr(processor, "cache_bytes", lambda cache=cache: cache)
        assert study.bytes_per_second("cpu", 0.0) == read_bytes
