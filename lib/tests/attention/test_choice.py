"""What `auto` takes: the backend that the rule names for the machine, else folded attention."""

import pytest
import torch

from lib.attention import choose_backend
from lib.attention.backends import onepass
from lib.lab import processor


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU: choosing reads shapes and devices alone."""

    is_cuda = True


def chosen(heads=4, nodes=3, prefix=(6,), dim=16, dtype=torch.float32, gpu=False):
    query, key = torch.zeros(len(prefix), heads, nodes, dim, dtype=dtype), torch.zeros(1, 2, 1, dim, dtype=dtype)
    query = query.as_subclass(OnGpu) if gpu else query
    return choose_backend(query, key, key, list(prefix))


@pytest.fixture
def kernels(monkeypatch):
    """Every kernel can run here."""
    monkeypatch.setattr("lib.attention.operator.refusal", lambda *inputs: None)
    monkeypatch.setattr(onepass, "unavailable", lambda: None)


@pytest.mark.parametrize("matrix_units, single_row", [(True, "folded"), (False, "onepass")])
def test_a_processor_takes_its_kernel_but_for_single_rows(kernels, monkeypatch, matrix_units, single_row):
    monkeypatch.setattr(processor, "has_matrix_units", lambda: matrix_units)
    assert chosen() == chosen(heads=2) == chosen(nodes=1) == "onepass"
    assert chosen(heads=2, nodes=1) == single_row


def test_a_gpu_serves_many_lengths_in_one_call_where_one_call_each_takes_longer(kernels):
    """Rows of one length always take one call; 256 rows one after another took 20 times as long as together."""
    assert chosen(gpu=True, prefix=[20_000] * 256) == "folded"
    assert chosen(gpu=True, prefix=[100, 200]) == "folded"
    assert chosen(gpu=True, prefix=range(100, 356)) == chosen(gpu=True, prefix=[8000, 8001]) == "triton"


def test_what_cannot_serve_is_passed_over():
    assert chosen(dim=12) == chosen(dtype=torch.float64) == "folded"  # the kernel takes neither


def test_a_processor_without_a_kernel_of_its_own_is_told_of_once(monkeypatch, caplog):
    onepass.say_once.cache_clear()
    monkeypatch.setattr(onepass, "unavailable", lambda: "the processor has no avx512f")
    assert chosen(prefix=[6]) == chosen(prefix=[5]) == "folded"
    assert len(caplog.records) == 1 and "to 'folded': the processor has no avx512f" in caplog.text
    onepass.say_once.cache_clear()
