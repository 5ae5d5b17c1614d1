"""The machine's roofs: each the best of its probes, whichever that is, and every probe does what it counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.lab import processor, timing
from lib.studies.attention import peaks


@pytest.mark.parametrize("fastest", range(3))
def test_whichever_call_is_fastest_makes_the_throughput(fastest, monkeypatch):
    """Also the attention kernel, so that none of its cells can lie above a roof that it helped to find."""
    calls = [(1, 1.0 if place == fastest else 2.0) for place in range(3)]
    monkeypatch.setattr(peaks, "products", lambda dtype, device: iter(calls[:2]))
    monkeypatch.setattr(peaks, "attention", lambda dtype, device: iter(calls[2:]))
    monkeypatch.setattr(timing, "shortest", lambda call, device, seconds: call)
    assert peaks.operations_per_second(torch.float32, "cpu", 0.0) == 1.0


def test_a_number_format_without_units_has_no_peak(monkeypatch):
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(peaks, "operations_per_second", lambda dtype, device, seconds: 1.0)
    monkeypatch.setattr(peaks, "bytes_per_second", lambda device, seconds: 1.0)
    assert set(peaks.probe(["float32", "bfloat16"]).throughput) == {"float32"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_do_the_operations_that_they_count(dtype, monkeypatch):
    """By torch's own count, which cannot see the kernel's."""
    monkeypatch.setattr(peaks, "SIZES", {"cpu": (16, 32)})
    for size, (operations, call) in zip((16, 32), peaks.products(dtype, "cpu"), strict=True):
        with FlopCounterMode(display=False) as counted:
            call()
        assert counted.get_total_flops() == operations == 2 * size**3


def test_every_probe_runs_and_its_rate_is_plausible():
    """Nothing moves less than 1 MB/s or more than 10 TB/s."""
    found = peaks.probe(["float32"], seconds=0.0)
    assert 1e6 < found.bandwidth < 1e13 and 1e6 < found.throughput["float32"] < 1e15


def test_memory_is_read_beyond_the_caches(monkeypatch):
    monkeypatch.setattr(timing, "shortest", lambda call, device, seconds: call().numel() and 1.0)  # one second a call
    for cache, read in ((2**20, peaks.LEAST_READ), (200 * 2**20, 400 * 2**20)):
        monkeypatch.setattr(processor, "cache_bytes", lambda cache=cache: cache)
        assert peaks.bytes_per_second("cpu", 0.0) == read
