"""Products of few rows in C++, against PyTorch's: any sizes, biases, both types; what a row's neighbours may change."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.forward.packed import rounded
from lib.kernels import build, panels, products
from lib.lab import processor
from lib.tests.instruction_sets import QUICKLY, instruction_set  # noqa: F401 (a fixture of every test)

WITHIN = {torch.float32: 2e-6, torch.bfloat16: 1e-2}  # of the largest number
reason = build.unavailable()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


def problem(rows, out, inputs, biased, dtype, seed):
    """x [rows, in], weight [out, in] and bias [out] or None."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, inputs), (out, inputs), (out,)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias if biased else None


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("form", ["as they are", "16 bits", "int8"])
@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 23) | st.integers(24, 70), out=st.integers(1, 70) | st.integers(71, 200),
       inputs=st.integers(1, 130), biased=st.booleans(), seed=st.integers(0, 999))
def test_a_product_is_that_of_float64_and_a_row_gets_its_bits(form, dtype, rows, out, inputs, biased, seed):
    """Where weights are in panels of 16 bits, these alone are read."""
    x, weight, bias = problem(rows, out, inputs, biased, dtype, seed)
    if form == "int8":
        packed = panels.of_int8(*rounded(weight))
        run, weight = products.linear(None, bias, packed, dtype), packed.rows()
    elif form == "16 bits":
        weight = weight.bfloat16().to(dtype)
        run = products.linear(torch.full_like(weight, math.nan), bias, panels.of_16_bits(weight))
    else:
        run = products.linear(weight, bias)
    truth, ours = F.linear(x.double(), weight.double(), None if bias is None else bias.double()), run(x)
    assert ours.dtype == dtype and ours.shape == truth.shape
    assert (ours.double() - truth).abs().max() <= WITHIN[dtype] * max(1.0, truth.abs().max().item(), inputs**0.5)
    assert torch.equal(run(x[rows // 2 :]), ours[rows // 2 :])


@settings(deadline=None, max_examples=80)
@given(rows=st.integers(1, 40), out=st.integers(1, 200), count=st.integers(1, 20), group=st.sampled_from([16, 32]),
       bits=st.sampled_from([4, 8]), with_offset=st.booleans(), short=st.booleans(), in_bytes=st.booleans(),
       seed=st.integers(0, 999))
def test_blocks_give_the_product_and_a_row_its_bits(rows, out, count, group, bits, with_offset, short, in_bytes, seed):
    count, generator, (least, end) = count * 32 // group, torch.Generator().manual_seed(seed), {
        4: (0, 16), 8: (-128, 128)}[bits]
    numbers = torch.randint(least, end, (out, count * group), generator=generator)
    scale, offset = torch.randn(2, out, count, generator=generator) / end
    scale, offset = (part.half().float() if short else part for part in (scale, offset * end / 2))
    weights = numbers * scale.double().repeat_interleave(group, 1)
    weights += offset.double().repeat_interleave(group, 1) if with_offset else 0
    packed = panels.of_blocks(numbers, scale, offset if with_offset else None, bits)
    assert packed.block_scale.dtype == (torch.float16 if short else torch.float32)
    assert (packed.rows() - weights).abs().max() <= 1e-6 * weights.abs().max()
    x = torch.randn(rows, count * group, generator=generator)
    packed = replace(packed, rounded=in_bytes and products.rounds(packed))
    run = products.linear(None, None, packed)
    truth, ours = (panels.in_bytes(x) if packed.rounded else x).double() @ weights.T, run(x)
    size = (x.double().abs() @ weights.abs().T).max()  # offsets and numbers may cancel
    assert (ours.double() - truth).abs().max() <= 1e-6 * size
    if rows - rows // 3 > 6 or rows <= 6 or group == 16 or packed.rounded:  # matrix units add in another order than vectors
        assert torch.equal(run(x[rows // 3 :]), ours[rows // 3 :])


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
def test_an_output_gets_the_same_bits_whatever_the_threads(dtype, monkeypatch):
    x, weight, bias = problem(7, 200, 90, True, dtype, 1)
    weight, ours = weight.bfloat16().to(dtype), []
    for threads in (1, 5, 12):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        ours.append(products.linear(weight, bias, panels.of_16_bits(weight))(x))
    assert torch.equal(ours[0], ours[1]) and torch.equal(ours[0], ours[2])


def test_nothing_beyond_an_input_is_read():
    row = torch.full((3, 64), math.nan)
    row[:, :33] = 1.0
    run = products.linear(torch.ones(5, 33), None, panels.of_16_bits(torch.ones(5, 33)))
    assert torch.equal(run(row.flatten()[:33].view(1, 33)), torch.full((1, 5), 33.0))


@pytest.mark.parametrize("weight", [torch.full((3, 40), 0.1), torch.tensor([[1.0], [1 + 2**-20]])])
def test_what_bfloat16_cannot_hold_is_in_no_panels(weight):
    assert panels.of_16_bits(weight) is None


@pytest.mark.parametrize("in_panels", [False, True])
def test_many_rows_and_leading_dimensions_are_the_same_product(in_panels):
    x, weight, bias = problem(6 * (products.MOST_ROWS // 2), 33, 47, True, torch.float32, 2)
    weight = weight.bfloat16().float()
    x, run = x.view(2, 3, -1, 47), products.linear(weight, bias, panels.of_16_bits(weight) if in_panels else None)
    torch.testing.assert_close(run(x), F.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(run(x.transpose(0, 1)), run(x).transpose(0, 1), atol=1e-4, rtol=1e-5)
    assert run(x[:, :, :0]).shape == (2, 3, 0, 33)
    for unfit in (x.double(), x[..., 1:]):
        with pytest.raises(RuntimeError):  # of PyTorch
            run(unfit)


@pytest.mark.parametrize("weights, reason", [
    ([torch.zeros(4, 4, dtype=torch.float64)], "float64"),
    ([torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.bfloat16)], "bfloat16 on cpu and torch.float32"),
    ([torch.zeros(4, 6).T], "not contiguous"),
])
def test_weights_that_the_kernels_do_not_take_are_refused_with_the_reason(weights, reason):
    with pytest.raises(build.CannotServe, match=reason):
        products.check_weights(weights)


def test_what_is_faster_is_measured_once(monkeypatch, tmp_path):
    """And kept beside the library, so that a run that goes on has the same number format."""
    library = build.library()
    monkeypatch.setattr(build, "library", lambda: SimpleNamespace(_name=str(tmp_path / "it.so"), **{
        name: getattr(library, name) for name in ("linear_float32", "linear_bfloat16")}))
    measured = products.faster_in_bfloat16.__wrapped__()
    assert (tmp_path / "it.bfloat16").read_text() == ("faster" if measured else "slower")
    monkeypatch.setattr("lib.lab.timing.interleaved", lambda *a, **k: pytest.fail("measured again"))
    assert products.faster_in_bfloat16.__wrapped__() == measured


def test_a_child_process_and_other_threads_compute_the_same():
    """A child has none of its parent's threads; of two calls at once the second runs alone."""
    x, weight, _ = problem(5, 200, 300, False, torch.float32, 3)
    run = products.linear(weight, None)
    whole = run(x).numpy().tobytes()
    if (child := os.fork()) == 0:
        os._exit(run(x).numpy().tobytes() != whole)
    assert os.waitpid(child, 0)[1] == 0
    with ThreadPoolExecutor(4) as pool:
        assert all(ours == whole for ours in pool.map(lambda _: run(x).numpy().tobytes(), range(40)))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux tells them")
def test_products_run_on_pytorchs_threads_and_start_none():
    done = subprocess.run([sys.executable, "-c", (
        "import os, torch; torch.set_num_threads(2); torch.randn(1 << 22).exp().sum()\n"
        "from lib.kernels import products; run, x = products.linear(torch.randn(256, 256), None), torch.randn(8, 256)\n"
        "before = len(os.listdir('/proc/self/task')); run(x); print(len(os.listdir('/proc/self/task')) - before)")],
        capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_the_kernels_agree_with_plain_loops(tmp_path):
    """`program.cpp`, whose first lines say how to run it for other processors."""
    library = Path(build.library()._name)
    program = tmp_path / "program"
    options = *QUICKLY, *build.instructions(processor.flags())
    source = Path(__file__).with_name("program.cpp")
    subprocess.run([build.compiler(), *options, "-o", program, source, library], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"DYLD_LIBRARY_PATH": str(library.parent)})  # macOS searches there
    assert done.returncode == 0, done.stdout + done.stderr
