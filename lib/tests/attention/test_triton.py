"""The CUDA kernel without a GPU: by Triton's interpreter, which cannot multiply bfloat16, and by its compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.attention.backends import refusal
from lib.attention.masks import packed_bits
from lib.attention.operator import tree_attention

@pytest.mark.optional
def test_it_gives_what_the_reference_gives_where_it_is_interpreted():
    """In a process of its own: Triton decides once, when it is first imported, whether it interprets."""
    tests = Path(__file__).parents[1] / "interpreted_kernel.py"
    done = subprocess.run([sys.executable, "-m", "pytest", "-v", str(tests)], capture_output=True, text=True,
                          env=os.environ | {"TRITON_INTERPRET": "1"}, timeout=300)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


@pytest.mark.optional
def test_it_compiles_for_an_h200_and_fits_there():
    """In a process of its own, which may not interpret. A processor has 227 KiB of shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "lib.tests.compiled_for_gpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    needs = json.loads(done.stdout)
    assert all(need["shared"] <= 227 * 1024 / (2 if need["rows"] <= 64 else 1) for need in needs)
    assert all(need["matrix units"] == (need["dtype"] != "fp32") for need in needs)


def test_packed_bits_are_the_mask():
    visible = torch.rand(5, 70, generator=torch.Generator().manual_seed(0)) < 0.5
    words = packed_bits(visible)
    assert words.shape == (5, 3) and words.dtype == torch.int32
    key = torch.arange(70)
    assert torch.equal(((words[:, key // 32] >> (key % 32)) & 1).bool(), visible)


@pytest.mark.optional
@settings(deadline=None)
@given(programs=st.integers(1, 3000), slots=st.integers(1, 300), keys=st.integers(1, 200_000))
def test_splits_fill_the_gpu_without_a_nearly_empty_last_wave(programs, slots, keys):
    """Nearly the fewest idle slots of any number of ranges, none of them too short to be worth it."""
    from lib.attention.triton import LEAST_KEYS, MOST_SPLITS, splits_for

    chosen, most = splits_for(programs, slots, keys), max(1, min(MOST_SPLITS, keys // LEAST_KEYS))
    busy = {count: programs * count / (-(-programs * count // slots) * slots) for count in range(1, most + 1)}
    assert 1 <= chosen <= most and busy[chosen] >= 0.9 * max(busy.values()) - 1e-9
    assert all(busy[count] < 0.9 * max(busy.values()) + 1e-9 for count in range(1, chosen))


def test_without_a_gpu_it_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(1, 2, 3, 16)
    assert refusal("triton", x, x, x)
    with pytest.raises(ValueError, match="backend 'triton' cannot serve this call: .*; use backend='auto'"):
        tree_attention(x, x, x, torch.ones(3, 3, dtype=torch.bool).tril(), 0, backend="triton")
