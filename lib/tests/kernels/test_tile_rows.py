"""Products on matrix units, which few processors have, by an emulation of their six instructions."""

import ctypes
from ctypes import c_int64, c_void_p
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.kernels import build, panels, products
from lib.lab import processor

SOURCE = Path(__file__).parents[1] / "emulated_rows.cpp"
WITHIN = 2e-6  # of the largest number
reason = build.unavailable(SOURCE) or ("" if "avx512_bf16" in processor.flags() else "there is no avx512_bf16")
pytestmark = pytest.mark.skipif(bool(reason), reason=reason)


def by_tiles(weight, bias, x):
    """x [rows, in] -> x W^T + b, of weights that are bfloat16 numbers."""
    library = build.library(SOURCE)
    library.packed_numbers.restype = c_int64
    rows, inputs = x.shape
    held = panels.of_16_bits(weight)
    packed = torch.full((library.packed_numbers(c_int64(rows), c_int64(inputs)) + 16,), torch.nan)
    start = -packed.data_ptr() % 64 // 4  # whole lines, as the forward allocates them
    to = torch.full((rows, len(weight)), torch.nan)
    library.linear_by_tiles(ctypes.byref(products.matrix_of(weight, bias, held)), c_void_p(x.data_ptr()),
                            c_void_p(packed[start:].data_ptr()), c_void_p(to.data_ptr()), c_int64(rows))
    return to


def problem(rows, out, inputs, biased, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((rows, inputs), (out, inputs), (out,)))
    return weight.bfloat16().float(), bias if biased else None, x


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 40), out=st.integers(1, 150), inputs=st.integers(1, 130), biased=st.booleans(),
       seed=st.integers(0, 999))
def test_a_product_is_that_of_float64(rows, out, inputs, biased, seed):
    weight, bias, x = problem(rows, out, inputs, biased, seed)
    truth = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    said = by_tiles(weight, bias, x)
    assert (said - truth).abs().max() <= WITHIN * max(1.0, truth.abs().max().item(), inputs**0.5)


def test_a_row_gets_the_same_bits_whatever_its_neighbours():
    weight, bias, x = problem(35, 70, 90, True, 1)
    whole = by_tiles(weight, bias, x)
    for first, count in ((0, 1), (3, 2), (7, 17), (20, 15)):
        assert torch.equal(by_tiles(weight, bias, x[first : first + count]), whole[first : first + count])
