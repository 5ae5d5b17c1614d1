"""The machine's roofs: each the best of its probes, whichever that is, and every probe does what it counts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lib.lab import processor, timing
from lib.studies.attention import peaks

rates = st.lists(st.floats(1e6, 1e15), min_size=1, max_size=6)


@given(rates=rates, amount=st.floats(1.0, 1e12))
def test_a_roof_is_the_best_form_s_rate(rates, amount):
    """Never below any of them, and reached by one."""
    forms = {str(at): (amount, rate) for at, rate in enumerate(rates)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "shortest", lambda call, device, seconds: amount / call)  # a form's rate for its call
        found = peaks.best_rate(forms, "cpu", 0.0)
    assert found == pytest.approx(max(rates))


@pytest.mark.parametrize("fastest", ["product", "four of half the size", "packed layer", "attention"])
def test_whichever_form_is_fastest_makes_the_throughput(fastest, monkeypatch):
    """Also the attention kernel, so that none of its cells can lie above a roof that it helped to find."""
    plain = ("product", "four of half the size", "packed layer")
    forms = {name: (1.0, 1.0 if name == fastest else 2.0) for name in (*plain, "attention")}
    monkeypatch.setattr(peaks, "products", lambda size, dtype, device: {name: forms[name] for name in plain})
    monkeypatch.setattr(peaks, "attention", lambda dtype, device: {"attention": forms["attention"]})
    monkeypatch.setattr(timing, "shortest", lambda call, device, seconds: call)
    assert peaks.whole_products(torch.float32, sizes=(8, 16), seconds=0.0) == 1.0


def test_a_number_format_without_units_has_no_peak(monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(peaks, "whole_products", lambda dtype, device, sizes, seconds: 1.0)
    found = peaks.probe(["float32", "bfloat16"], seconds=0.0)
    assert set(found.throughput) == {"float32"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_do_the_operations_that_they_count(dtype):
    """By torch's own count, of those that it can see: a packed layer's and the kernel's it cannot."""
    for name in ("product", "four of half the size"):
        operations, call = peaks.products(32, dtype, "cpu")[name]
        with FlopCounterMode(display=False) as counted:
            call()
        assert counted.get_total_flops() == operations == 2 * 32**3


def test_every_form_runs_and_its_rate_is_plausible():
    """Nothing moves less than 1 MB/s or more than 10 TB/s."""
    found = peaks.probe(["float32"], seconds=0.0)
    assert 1e6 < found.bandwidth < 1e13 and 1e6 < found.throughput["float32"] < 1e15


def test_memory_is_read_beyond_the_caches(monkeypatch):
    for cache, megabytes in ((2**20, 256), (200 * 2**20, 400), (2**30, 1024)):
        monkeypatch.setattr(peaks.processor, "cache_bytes", lambda cache=cache: cache)
        assert peaks.memory_megabytes() == (megabytes,)
