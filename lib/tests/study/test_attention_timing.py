"""The study of attention: each cell gives a row per alternative, with times or a reason; the peaks of the machine."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lib.attention.backends import refusal
from lib.attention.operator import tree_attention
from lib.lab import processor, timing
from lib.lab.chapter import Store
from lib.lab.tables import read
from lib.study import attention as study
from lib.study.attention import PREPARE, Cell
from lib.study.settings import Attention
from lib.tests.notebook_settings import defaults
from lib.trees import Tree

PEAKS = {"bandwidth": 1e10, "throughput float32": 1e11}
GRID = dict(batches=[1, 2], prefixes=[8], dtypes=["float32"], query_heads=4, head_dim=8, repeats=3, cell_seconds=0.5)


def cell(batch, prefix, draft, dtype="float32", **changes):
    heads = {"query_heads": 4, "kv_heads": 2, "head_dim": 8} | changes
    return Cell(dtype, batch, prefix, draft, cold=False, shape="kary:2", **heads)


def measured(cell, **changes):
    limits = defaults(Attention, **{"cell_seconds": 2.0, "memory_limit_gb": 1.0, "repeats": 3} | changes)
    return {row["alternative"]: row for row in study.time_cell(cell, limits, PEAKS, 0)}


@pytest.mark.parametrize("name", PREPARE)
@settings(deadline=None, max_examples=15)
@given(data=st.data(), nodes=st.integers(1, 12), prefix=st.integers(0, 20), group=st.sampled_from([1, 3]))
def test_every_alternative_computes_tree_attention(name, data, nodes, prefix, group):
    """Also when called again: nothing is left over from the first call."""
    tree = Tree([-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, nodes)])
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, tokens, 8, generator=generator)
                         for heads, tokens in ((2 * group, nodes), (2, prefix + nodes), (2, prefix + nodes)))
    if reason := refusal(name, query, key, value):
        pytest.skip(reason)
    inputs = query, key, value, torch.from_numpy(tree.mask.copy()), prefix
    truth = tree_attention(*inputs, backend="reference")
    run = PREPARE[name](*inputs)
    for _ in range(2):
        torch.testing.assert_close(run(), truth, rtol=0, atol=2e-6)


def test_a_run_fills_its_tables_and_goes_on_with_the_next_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "SIZES", {"cpu": (16,)})
    monkeypatch.setattr(study, "LEAST_READ", {"cpu": 2**20})
    monkeypatch.setattr(timing, "LEAST_FLUSHED", 2**20)
    monkeypatch.setattr(processor, "cache_bytes", lambda: 2**20)
    study.measure(Store(tmp_path, "03", "mark"), defaults(Attention, drafts=[1], **GRID))
    first, time_cell, cells = read(tmp_path, "03_attention"), study.time_cell, []
    monkeypatch.setattr(study, "time_cell", lambda cell, *rest: cells.append(cell) or time_cell(cell, *rest))
    study.measure(Store(tmp_path, "03", "mark"), defaults(Attention, drafts=[1, 4], **GRID))
    assert [(cell.batch, cell.draft, cell.cold) for cell in cells] == [(1, 4, False), (2, 4, False), (1, 4, True)]
    rows = read(tmp_path, "03_attention")
    assert rows["ms"][: len(first)].equals(first["ms"])
    timed, cold = rows[~rows["skipped"].str.startswith("refused: ")], rows[rows["cold"]]
    assert {*timed["alternative"]} >= {"auto", "folded", "onepass", "dense mask", "node by node"}
    assert (timed["n"] == 3).all() and timed["low"].gt(0).all()
    assert timed["ms"].between(timed["low"], timed["high"]).all()
    assert set(cold["batch"]) == {1} and set(cold["alternative"]) == set(study.COLD)
    assert len(rows) == 4 * len(PREPARE) + 2 * len(study.COLD) and rows["least_ms"].gt(0).all()
    peaks = read(tmp_path, "03_peaks").set_index("what")["value"]
    assert peaks.index.tolist() == ["bandwidth", "throughput float32"] and peaks.between(1e6, 1e15).all()


def test_what_does_not_fit_is_skipped_with_the_reason_before_it_is_made(monkeypatch):
    """Inputs over the memory limit, one alternative's copies over it, or its reads over the limit of time."""
    rows = measured(cell(10**6, 10**6, 64, query_heads=32, kv_heads=8, head_dim=128))
    assert {row["skipped"].split(": ")[0] for row in rows.values()} <= {"memory", "refused"}
    assert "memory: needs" in rows["onepass"]["skipped"] and rows["onepass"]["n"] == 0
    rows = measured(cell(1, 512, 32), memory_limit_gb=2e-4)
    assert "memory: needs" in rows["dense mask"]["skipped"] and not rows["folded"]["skipped"]
    monkeypatch.setitem(PREPARE, "node by node", lambda *inputs: pytest.fail("was tried"))
    rows = measured(cell(1, 2**16, 32), cell_seconds=0.005)
    assert "time: 3 calls of 0.026" in rows["node by node"]["skipped"]


def test_what_fails_or_takes_too_long_is_a_row_with_the_reason(monkeypatch):
    """A compiler's refusal of one alternative must not cost the times of the others."""
    def broken():
        raise RuntimeError("no valid kernel\nand a long trace")

    monkeypatch.setitem(PREPARE, "onepass", lambda *inputs: broken)
    monkeypatch.setitem(PREPARE, "node by node", lambda *inputs: lambda: time.sleep(0.3))
    rows = measured(cell(1, 8, 4), cell_seconds=0.3)
    assert rows["onepass"]["skipped"] == "failed: RuntimeError: no valid kernel" and rows["folded"]["n"] == 3
    assert "time: 3 calls of 0.3" in rows["node by node"]["skipped"]


def test_a_number_format_without_units_and_heads_that_do_not_fit_are_refused(monkeypatch, tmp_path):
    """A processor with AVX2 alone."""
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx2", "fma"}))
    for changes, message in (({"dtypes": ["bfloat16"]}, r"\['bfloat16'\], and the processor has no units .* 'float32'"),
                             ({"query_heads": 5}, "5 query heads over 2 key heads")):
        with pytest.raises(ValueError, match=message):
            study.measure(Store(tmp_path, "03", "mark"), defaults(Attention, **GRID | changes))


def test_all_alternatives_agree_with_the_reference_to_their_dtype_s_precision():
    for dtype, within in {"float32": 1e-6, "bfloat16": 6e-3}.items():
        if dtype != "bfloat16" or processor.has_bfloat16_units():
            errors = study.error_rows(cell(2, 64, 9, dtype)).set_index("alternative")["error"]
            assert {"auto", "folded", "onepass", "path by path", "node by node"} <= set(errors.index) <= set(PREPARE)
            assert errors.max() < within


def test_a_cell_s_roofline_is_the_longer_of_reading_and_arithmetic():
    few, many = (cell(1, 1000, draft, query_heads=8, head_dim=64).roofline(PEAKS) for draft in (1, 200))
    assert few["bytes"] == 2 * 2 * 1001 * 64 * 4 + 2 * 8 * 64 * 4
    assert few["operations"] == 4 * 64 * 8 * 1001
    assert few["least_ms"] == pytest.approx(1e3 * few["bytes"] / 1e10)
    assert many["least_ms"] == pytest.approx(1e3 * many["operations"] / 1e11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_do_the_operations_that_they_count(dtype, monkeypatch):
    """By torch's own count, which cannot see the kernel's."""
    monkeypatch.setattr(study, "SIZES", {"cpu": (16, 32)})
    for size, (operations, call) in zip((16, 32), study.products(dtype, "cpu")):
        with FlopCounterMode(display=False) as counted:
            call()
        assert counted.get_total_flops() == operations == 2 * size**3


def test_memory_is_read_beyond_the_caches(monkeypatch):
    monkeypatch.setattr(study, "LEAST_READ", {"cpu": 2**22})
    for cached, read_bytes in ((2**20, 2**22), (2**22, 2**23)):
        monkeypatch.setattr(processor, "cache_bytes", lambda cached=cached: cached)
        assert [(size, call().item() > 0) for size, call in study.reads("cpu")] == 2 * [(read_bytes, True)]
