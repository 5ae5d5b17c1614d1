"""The processor's own kernel beyond what all backends share: threads, splits, and when it steps aside."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.attention import backends
from lib.attention.operator import tree_attention
from lib.kernels import build
from lib.lab import processor
from lib.tests.attention.test_attention import TOLERANCE, error
from lib.tests.instruction_sets import emulated, instruction_set  # noqa: F401 (a fixture of every test)

needs_kernel = pytest.mark.skipif(backends.unavailable() is not None, reason=str(backends.unavailable()))


def problem(batch, kv_heads, group, nodes, prefix, dim, value_dim, dtype, generator):
    shapes = ((batch, kv_heads * group, nodes, dim), (batch, kv_heads, prefix + nodes, dim),
              (batch, kv_heads, prefix + nodes, value_dim))
    mask = torch.eye(nodes, dtype=torch.bool) | (torch.rand(nodes, nodes, generator=generator) < 0.4).tril()
    return *(torch.randn(shape, generator=generator).to(dtype) for shape in shapes), mask


@needs_kernel
@settings(deadline=None, max_examples=40)
@given(batch=st.integers(1, 2), kv_heads=st.integers(1, 3), group=st.integers(1, 5),
       nodes=st.integers(1, 4) | st.integers(1, 90), prefix=st.integers(0, 700), dim=st.sampled_from([8, 40, 64]),
       value_dim=st.sampled_from([24, 32, 40, 48, 64, 80, 96]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
       threads=st.sampled_from([1, 2, 3, 7, 64]), seed=st.integers(0, 999))
def test_any_number_of_rows_keys_and_threads(batch, kv_heads, group, nodes, prefix, dim, value_dim, dtype, threads,
                                             seed):
    """Rows that fill no vector, keys that fill no tile, more rows than an item takes, splits over the keys; sinks need
    the log-sum-exp. In few values a mean may be nearly nothing, and any rounding large beside it.
    """
    generator = torch.Generator().manual_seed(seed)
    *inputs, mask = problem(batch, kv_heads, group, nodes, prefix, dim, value_dim, dtype, generator)
    wide, sinks = [x.double() for x in inputs], torch.linspace(-1, 1, kv_heads * group)
    for more in ({}, {"sinks": sinks}):
        truth = tree_attention(*wide, mask, prefix, backend="reference", **more)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: threads)
            ours = tree_attention(*inputs, mask, prefix, backend="onepass", **more)
        assert error(ours, truth) <= (3 if more else 1.5) * TOLERANCE[dtype]


@needs_kernel
@pytest.mark.parametrize("scale", [0.0, 3.0, 10.0, 30.0, 100.0, -100.0])
def test_large_scores_neither_overflow_nor_vanish(scale):
    """Scores of tens to hundreds: one key takes nearly all the weight, others less than the smallest normal number."""
    *inputs, mask = problem(1, 2, 2, 5, 300, 16, 16, torch.float32, torch.Generator().manual_seed(0))
    truth = tree_attention(*(x.double() for x in inputs), mask, 300, backend="reference", scale=scale)
    assert error(tree_attention(*inputs, mask, 300, backend="onepass", scale=scale), truth) < 1e-4


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("nodes", [2, 20, 120])
def test_scores_may_grow_from_key_to_key(nodes, dtype):
    """Each tile outgrows all before it: what was added has to be scaled, over and over, by whatever way it is added."""
    generator = torch.Generator().manual_seed(nodes)
    query, key, value, mask = problem(1, 1, 2, nodes, 600, 64, 64, dtype, generator)
    query = query.abs()
    key = (key / 100 + torch.linspace(0, 30, key.shape[2])[:, None]).to(dtype)
    truth = tree_attention(*(x.double() for x in (query, key, value)), mask, 600, backend="reference")
    ours = tree_attention(query, key, value, mask, 600, backend="onepass")
    assert error(ours, truth) < {torch.float32: 2e-5, torch.bfloat16: 5e-3}[dtype]


@needs_kernel
@settings(deadline=None, max_examples=12)
@given(group=st.integers(1, 3), nodes=st.integers(1, 40), prefix=st.integers(0, 300), dim=st.sampled_from([32, 96]),
       value_dim=st.sampled_from([32, 48]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
       seed=st.integers(0, 999))
def test_matrix_units_compute_the_same_where_they_are_emulated(group, nodes, prefix, dim, value_dim, dtype, seed):
    if "avx512_bf16" not in processor.flags():
        pytest.skip("matrix units come with avx512_bf16")
    tiles = emulated("emulated_onepass.cpp")
    generator = torch.Generator().manual_seed(seed)
    query, key, value, mask = problem(1, 2, group, nodes, prefix, dim, value_dim, dtype, generator)
    truth = tree_attention(*(x.double() for x in (query, key, value)), mask, prefix, backend="reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "library", lambda: tiles)
        patch.setattr(backends, "ENTRIES", {torch.float32: "tiled_float32", torch.bfloat16: "tiled_bfloat16"})
        ours = tree_attention(query, key, value, mask, prefix, backend="onepass")
    assert error(ours, truth) <= 1.5 * TOLERANCE[dtype]


@needs_kernel
def test_nan_in_a_key_that_is_seen_is_not_hidden():
    query, key, value, mask = problem(1, 1, 2, 3, 40, 8, 8, torch.float32, torch.Generator().manual_seed(0))
    key[0, 0, 7] = float("nan")
    assert tree_attention(query, key, value, mask, 40, backend="onepass").isnan().all()


@pytest.mark.parametrize("inputs, reason", [
    (lambda: torch.randn(1, 2, 3, 8, dtype=torch.float64), "not float64"),
    (lambda: torch.randn(1, 2, 3, 12), "multiple of 8 numbers, not 12"),
    (lambda: torch.randn(1, 2, 3, 8, requires_grad=True), "no gradients"),
])
def test_what_it_cannot_serve_is_left_to_folded_and_logged_once(inputs, reason, caplog):
    backends.say_once.cache_clear()
    x, mask = inputs(), torch.eye(1, 3, dtype=torch.bool).repeat(3, 1)
    for _ in range(2):
        ours = tree_attention(x, x, x, mask, 0, backend="onepass")
    assert torch.equal(ours, tree_attention(x, x, x, mask, 0, backend="folded"))
    assert len(caplog.records) == 1 and reason in caplog.text


@pytest.mark.parametrize("flags, reason", [({"sse2"}, "neither AVX2"), ({"avx2", "fma", "f16c"}, "no C++ compiler")])
def test_a_machine_without_the_means_says_so_and_serves_all_the_same(flags, reason, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_library", build._library.__wrapped__)
    monkeypatch.setattr(build.processor, "flags", lambda: frozenset(flags))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert reason in backends.unavailable()
    x, mask = torch.randn(1, 2, 3, 8), torch.ones(3, 3, dtype=torch.bool).tril()
    folded = tree_attention(x, x, x, mask, 0, backend="folded")
    assert torch.equal(tree_attention(x, x, x, mask, 0, backend="onepass"), folded)


@needs_kernel
def test_a_call_without_memory_is_an_error_of_python(monkeypatch):
    x = torch.randn(1, 2, 3, 16)
    monkeypatch.setattr(backends, "library", lambda: SimpleNamespace(onepass_float32=lambda call: 0))
    with pytest.raises(MemoryError, match=r"no memory .* query \(1, 2, 3, 16\); use fewer threads"):
        tree_attention(x, x, x, torch.ones(3, 3).bool(), 0, backend="onepass")
