"""Products on matrix units, which few processors have, by an emulation of their seven instructions."""

import ctypes
from ctypes import c_int64, c_void_p

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.forward.packed import rounded
from lib.kernels import build, panels, products
from lib.lab import processor
from lib.tests.instruction_sets import emulated

KINDS = ["halves", "int8", "nibbles", "blocks"]
WITHIN = 2e-7  # of the weights' sizes times the largest number of a row
reason = build.unavailable() or ("" if "avx512_bf16" in processor.flags() else "there is no avx512_bf16")
pytestmark = pytest.mark.skipif(bool(reason), reason=reason)


def by_tiles(packed, bias, x):
    """x [rows, in] -> x W^T + b, of weights in panels."""
    matrix, to = products.matrix_of(None, bias, packed), x.new_full((len(x), packed.shape[0]), torch.nan)
    run = getattr(emulated("emulated_rows.cpp"), f"linear_{products.NAMES[x.dtype]}")
    run(ctypes.byref(matrix), *(c_void_p(tensor.data_ptr()) for tensor in (x, to)), c_int64(len(x)), c_int64(2))
    return to


def problem(kind, rows, out, inputs, seed):
    """Panels [out, in], bias [out] and x [rows, in], with outliers as texts have them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = -(-inputs // 32) * 32 if kind in ("nibbles", "blocks") else inputs
    x, bias = torch.randn(rows, inputs, generator=generator), torch.randn(out, generator=generator)
    x[:, 0] *= 100
    weight = torch.randn(out, inputs, generator=generator)
    scale, offset = torch.randn(2, out, -(-inputs // 32), generator=generator).half().float()
    packed = {"halves": lambda: panels.of_16_bits(weight.bfloat16()), "int8": lambda: panels.of_int8(*rounded(weight)),
              "nibbles": lambda: panels.of_blocks((8 + 3 * weight).clamp(0, 15).round(), scale, offset, 4),
              "blocks": lambda: panels.of_blocks(rounded(weight)[0], scale, None, 8)}[kind]()
    return packed, bias, x


@settings(deadline=None, max_examples=40)
@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 40), out=st.integers(1, 150),
       inputs=st.integers(1, 130), seed=st.integers(0, 999))
def test_a_product_is_that_of_float64(kind, rows, out, inputs, seed):
    packed, bias, x = problem(kind, rows, out, inputs, seed)
    whole = packed.rows().double()
    truth = F.linear(x.double(), whole, bias.double())
    size = (x.abs().max() * whole.abs().sum(1).max()).item()
    assert (by_tiles(packed, bias, x) - truth).abs().max() <= WITHIN * max(1.0, size)


@pytest.mark.parametrize("kind", ["halves", "int8"])
def test_bfloat16_rows_are_multiplied_as_they_are(kind):
    packed, _, x = problem(kind, 19, 70, 90, 1)
    truth = F.linear(x.bfloat16().double(), packed.rows().double())
    torch.testing.assert_close(by_tiles(packed, None, x.bfloat16()).double(), truth, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gets_the_same_bits_whatever_its_neighbours(kind):
    packed, bias, x = problem(kind, 35, 70, 90, 1)
    whole = by_tiles(packed, bias, x)
    in_blocks = kind in ("nibbles", "blocks")  # of which few rows are multiplied in vectors
    for first, count in ((7, 17), (20, 15), *([] if in_blocks else [(0, 1), (3, 2)])):
        assert torch.equal(by_tiles(packed, bias, x[first : first + count]), whole[first : first + count])


def test_a_row_with_a_number_that_is_none_has_no_numbers():
    packed, _, x = problem("int8", 3, 40, 64, 1)
    x[1, 5] = torch.inf
    assert by_tiles(packed, None, x).isfinite().all(1).tolist() == [True, False, True]
