"""Products on matrix units, which few processors have, by an emulation of their seven instructions."""

import ctypes
from ctypes import c_int64, c_void_p
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.forward.packed import rounded
from lib.kernels import build, panels, products
from lib.lab import processor

SOURCE = Path(__file__).parents[1] / "emulated_rows.cpp"
KINDS = ["halves", "int8", "nibbles", "blocks"]
WITHIN = 2e-7  # of the weights' sizes times the largest number of a row
reason = build.unavailable(SOURCE) or ("" if "avx512_bf16" in processor.flags() else "there is no avx512_bf16")
pytestmark = pytest.mark.skipif(bool(reason), reason=reason)


def by_tiles(packed, bias, x):
    """x [rows, in] -> x W^T + b, of weights in panels."""
    matrix, to = products.matrix_of(None, bias, packed), x.new_full((len(x), packed.shape[0]), torch.nan)
    run = getattr(build.library(SOURCE), f"linear_{products.NAMES[x.dtype]}")
    run(ctypes.byref(matrix), *(c_void_p(tensor.data_ptr()) for tensor in (x, to)), c_int64(len(x)), c_int64(2))
    return to


def weights(kind, out, inputs, generator):
    """Panels [out, in] of this kind."""
    numbers = torch.randn(out, inputs, generator=generator)
    if kind == "halves":
        return panels.of_16_bits(numbers.bfloat16())
    if kind == "int8":
        return panels.of_int8(*rounded(numbers))
    factors = torch.randn(2, out, inputs // 32, generator=generator).half().float()
    whole = torch.randint(0, 16, (out, inputs), generator=generator) if kind == "nibbles" else rounded(numbers)[0]
    return panels.of_blocks(whole, factors[0], factors[1] if kind == "nibbles" else None, 4 if kind == "nibbles" else 8)


def problem(kind, rows, out, inputs, biased, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = -(-inputs // 32) * 32 if kind in ("nibbles", "blocks") else inputs
    x, bias = torch.randn(rows, inputs, generator=generator), torch.randn(out, generator=generator)
    x[:, 0] *= 100  # texts have such outliers
    return weights(kind, out, inputs, generator), bias if biased else None, x


@settings(deadline=None, max_examples=40)
@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 40), out=st.integers(1, 150),
       inputs=st.integers(1, 130), biased=st.booleans(), seed=st.integers(0, 999))
def test_a_product_is_that_of_float64(kind, rows, out, inputs, biased, seed):
    packed, bias, x = problem(kind, rows, out, inputs, biased, seed)
    whole = packed.rows().double()
    truth = F.linear(x.double(), whole, None if bias is None else bias.double())
    size = (x.abs().max() * whole.abs().sum(1).max()).item()
    assert (by_tiles(packed, bias, x) - truth).abs().max() <= WITHIN * max(1.0, size)


@pytest.mark.parametrize("kind", ["halves", "int8"])
def test_bfloat16_rows_are_multiplied_as_they_are(kind):
    packed, _, x = problem(kind, 19, 70, 90, False, 1)
    truth = F.linear(x.bfloat16().double(), packed.rows().double())
    torch.testing.assert_close(by_tiles(packed, None, x.bfloat16()).double(), truth, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gets_the_same_bits_whatever_its_neighbours(kind):
    packed, bias, x = problem(kind, 35, 70, 90, True, 1)
    whole = by_tiles(packed, bias, x)
    in_blocks = kind in ("nibbles", "blocks")  # of which few rows are multiplied in vectors
    for first, count in ((7, 17), (20, 15), *([] if in_blocks else [(0, 1), (3, 2)])):
        assert torch.equal(by_tiles(packed, bias, x[first : first + count]), whole[first : first + count])


def test_a_row_with_a_number_that_is_none_has_no_numbers():
    packed, _, x = problem("int8", 3, 40, 64, False, 1)
    x[1, 5] = torch.inf
    assert by_tiles(packed, None, x).isfinite().all(1).tolist() == [True, False, True]
