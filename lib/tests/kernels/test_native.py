"""Products of few rows in C++, against PyTorch's: any sizes, biases, both types; what a row's neighbours may change."""

import ctypes
import math
from ctypes import c_int64, c_void_p

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.kernels import build, products
from lib.models.quantize import Int8Linear
from lib.tests.instruction_sets import instruction_set  # noqa: F401 (a fixture of every test)

WITHIN = {torch.float32: 2e-6, torch.bfloat16: 1e-2}  # of the largest number
reason = products.weights_refusal([torch.zeros(8, 8)])
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


def problem(rows, out, inputs, biased, dtype, seed):
    """x [rows, in], weight [out, in] and bias [out] or None, as in the middle of larger tensors."""
    if refused := products.weights_refusal([torch.zeros(8, 8, dtype=dtype)]):
        pytest.skip(refused)
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, inputs), (out, inputs), (out,)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias if biased else None


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 23), out=st.integers(1, 70), inputs=st.integers(1, 130), biased=st.booleans(),
       seed=st.integers(0, 999))
def test_a_product_is_that_of_float64(rows, out, inputs, biased, dtype, seed):
    x, weight, bias = problem(rows, out, inputs, biased, dtype, seed)
    truth = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    said = products.linear(weight, bias)(x)
    assert said.dtype == dtype and said.shape == truth.shape
    assert (said.double() - truth).abs().max() <= WITHIN[dtype] * max(1.0, truth.abs().max().item(), inputs**0.5)


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("paired", [False, True])
def test_a_row_gets_the_same_bits_whatever_its_neighbours(dtype, paired):
    x, weight, bias = problem(31, 100, 200, True, dtype, 1)
    weight = weight.bfloat16().to(dtype)
    run = products.linear(weight, bias, products.paired(weight) if paired else None)
    whole = run(x)
    for first in range(31):
        for count in (1, 2, 3, 5, 8):
            assert torch.equal(run(x[first : first + count]), whole[first : first + count])


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 70), out=st.integers(1, 200), inputs=st.integers(1, 130), biased=st.booleans(),
       seed=st.integers(0, 999))
def test_weights_in_pairs_give_the_product(dtype, rows, out, inputs, biased, seed):
    x, weight, bias = problem(rows, out, inputs, biased, dtype, seed)
    weight = weight.bfloat16().to(dtype)
    truth = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    said = products.linear(torch.full_like(weight, math.nan), bias, products.paired(weight))(x)
    assert (said.double() - truth).abs().max() <= WITHIN[dtype] * max(1.0, truth.abs().max().item(), inputs**0.5)


def rounded_product(layer, x):
    """The product of x with a layer's int8 weights alone, in x's dtype."""
    pairs, scale, to = products.paired(layer.weight), layer.scale.float(), x.new_empty(len(x), len(layer.weight))
    matrix = products.matrix_of(torch.empty(layer.weight.shape), layer.bias, pairs, scale)
    run = getattr(build.library(*products.SOURCES), f"linear_{products.NAMES[x.dtype]}")
    run(ctypes.byref(matrix), *map(c_void_p, (x.data_ptr(), to.data_ptr())), c_int64(len(x)), c_int64(2))
    return to


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 20), out=st.integers(1, 200), inputs=st.integers(1, 130), biased=st.booleans(),
       seed=st.integers(0, 999))
def test_int8_weights_give_the_product_and_a_row_its_bits(dtype, rows, out, inputs, biased, seed):
    x, weight, bias = problem(rows, out, inputs, biased, dtype, seed)
    linear = torch.nn.Linear(inputs, out, bias=biased, dtype=dtype)
    linear.load_state_dict({"weight": weight} | ({"bias": bias} if biased else {}))
    layer = Int8Linear(linear.requires_grad_(False))
    truth = x.double() @ (layer.weight.double() * layer.scale.double()[:, None]).T + (bias.double() if biased else 0)
    said = rounded_product(layer, x)
    assert (said.double() - truth).abs().max() <= WITHIN[dtype] * max(1.0, truth.abs().max().item(), inputs**0.5)
    assert torch.equal(rounded_product(layer, x[rows // 2 :].clone()), said[rows // 2 :])


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
def test_an_output_gets_the_same_bits_whatever_the_threads(dtype):
    x, weight, bias = problem(7, 200, 90, True, dtype, 1)
    weight, own = weight.bfloat16().to(dtype), torch.get_num_threads()
    run, said = products.linear(weight, bias, products.paired(weight)), []
    try:
        for threads in (1, 5, 12):  # four, two and one vectors of outputs at a time
            torch.set_num_threads(threads)
            said.append(run(x))
    finally:
        torch.set_num_threads(own)
    assert torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])


def test_nothing_beyond_an_input_is_read():
    row = torch.full((3, 64), math.nan)
    row[:, :33] = 1.0
    run = products.linear(torch.ones(5, 33), None, products.paired(torch.ones(5, 33)))
    assert torch.equal(run(row.flatten()[:33].view(1, 33)), torch.full((1, 5), 33.0))


@pytest.mark.parametrize("weight", [torch.full((3, 40), 0.1), torch.tensor([[1.0], [1 + 2**-20]])])
def test_what_bfloat16_cannot_hold_is_not_paired(weight):
    assert products.paired(weight) is None


@pytest.mark.parametrize("in_pairs", [False, True])
def test_many_rows_and_leading_dimensions_are_the_same_product(in_pairs):
    x, weight, bias = problem(6 * (products.MOST_ROWS // 2), 33, 47, True, torch.float32, 2)
    weight = weight.bfloat16().float()
    x, run = x.view(2, 3, -1, 47), products.linear(weight, bias, products.paired(weight) if in_pairs else None)
    torch.testing.assert_close(run(x), F.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(run(x.transpose(0, 1)), run(x).transpose(0, 1), atol=1e-4, rtol=1e-5)
    assert run(x[:, :, :0]).shape == (2, 3, 0, 33)


@pytest.mark.parametrize("x", [torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2, 7)], ids=["type", "width"])
def test_inputs_that_do_not_fit_are_pytorchs_to_refuse(x):
    with pytest.raises(RuntimeError):
        products.linear(torch.zeros(4, 8), None)(x)


@pytest.mark.parametrize("weights, said", [
    (lambda: [torch.zeros(4, 4, dtype=torch.float64)], "float64"),
    (lambda: [torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.bfloat16)], "bfloat16 on cpu and torch.float32"),
    (lambda: [torch.zeros(4, 6).T], "not contiguous"),
])
def test_what_cannot_be_served_is_said(weights, said):
    assert said in products.weights_refusal(weights())


def test_a_refusal_asks_the_processor(monkeypatch):
    monkeypatch.setattr("lib.lab.processor.flags", lambda: frozenset({"avx512_bf16", "amx_bf16"}))
    assert "matrix units" in products.weights_refusal([torch.zeros(4, 4, dtype=torch.bfloat16)])
    monkeypatch.setattr("lib.lab.processor.flags", lambda: frozenset())
    assert "neither AVX2" in products.weights_refusal([torch.zeros(4, 4, dtype=torch.bfloat16)])
