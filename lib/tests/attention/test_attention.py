"""Tree attention against its float64 reference, and the properties that any backend must have, on drawn shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (BertConfig, BloomConfig, DogeConfig, GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig,
                          MllamaConfig, Qwen3Config)

from lib.attention.backends import BACKENDS, refusal
from lib.attention.masks import SharedMask
from lib.attention.operator import choose_backend, tree_attention
from lib.attention.registration import attention_forward, can_host_tree
from lib.lab import processor
from lib.trees import Tree

SAMPLE = torch.zeros(1, 1, 1, 8)
FAST = [name for name in BACKENDS if name != "reference" and refusal(name, SAMPLE, SAMPLE, SAMPLE) is None]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 1e-3}
EXACT = {torch.float64: 1e-12, torch.float32: 5e-6}  # of sums in another order, in any one number
each_backend = pytest.mark.parametrize("backend", FAST)
drawn = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True, scope="module")
def poisoned():
    """New memory holds NaN until it is written, so that a number which no backend writes is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(9).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def ancestors(parents):
    """The mask of a tree."""
    return torch.tensor(Tree(list(parents)).mask)


@st.composite
def problems(draw, dtypes=tuple(TOLERANCE)):
    """A batch of random trees, one a row, after prefixes of different lengths, in a buffer longer than needed."""
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 4))
    dim, dtype = draw(st.sampled_from([8, 16, 24, 32])), draw(st.sampled_from(dtypes))
    nodes, spare, seed = draw(st.integers(1, 12)), draw(st.integers(0, 5)), draw(st.integers(0, 2**31))
    parents = [[-1] + [draw(st.integers(0, node - 1)) for node in range(1, nodes)] for _ in range(batch)]
    prefix = draw(st.lists(st.integers(0, 40), min_size=batch, max_size=batch))
    slots, generator = max(prefix) + nodes + spare, torch.Generator().manual_seed(seed)
    shapes = (batch, kv_heads * group, nodes, dim), (batch, kv_heads, slots, dim), (batch, kv_heads, slots, dim)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    if draw(st.booleans()):  # as projections leave queries, and as slices of one interleaved buffer
        q, (k, v) = q.transpose(1, 2).contiguous().transpose(1, 2), torch.stack([k, v], 3).unbind(3)
    first = draw(st.integers(0, nodes - 1))  # a level of a tree sees those before it: fewer queries than tree keys
    return q[:, :, first:], k, v, torch.stack([ancestors(row) for row in parents])[:, first:], torch.tensor(prefix)


def error(ours, truth):
    return ((ours.double() - truth.double()).norm() / truth.double().norm()).item()


@pytest.mark.parametrize("backend", [*FAST, "auto"])
@settings(deadline=None, max_examples=40)
@given(problem=problems(), window=st.none() | st.integers(1, 60), softcap=st.sampled_from([None, 0.5, 30.0]),
       sunk=st.booleans(), scale=st.sampled_from([None, 0.05, 1.0]))
def test_equals_the_float64_reference(backend, problem, window, softcap, sunk, scale):
    """Every dtype, grouped heads, ragged prefixes, prefix 0, over-allocated and interleaved keys, levels of trees,
    windows, capped scores, and sinks, which need the log-sum-exp; the slack covers tiny problems.
    """
    query, key, value, mask, prefix = problem
    sinks = torch.linspace(-1, 2, query.shape[1]).to(query.dtype) if sunk else None
    more = dict(window=window, softcap=softcap, sinks=sinks, scale=scale)
    wide = [x.double() for x in (query, key, value)]
    truth = tree_attention(*wide, mask, prefix, backend="reference", **more)
    ours = tree_attention(*problem, backend=backend, **more)
    assert ours.dtype == query.dtype and ours.shape == query.shape
    assert error(ours, truth) <= (4 if sunk or softcap or scale else 1.5) * TOLERANCE[query.dtype]


@each_backend
@drawn
@given(nodes=st.integers(1, 12), prefix=st.integers(0, 30), group=st.integers(1, 3), dim=st.sampled_from([8, 32]),
       dtype=st.sampled_from(list(EXACT)), seed=st.integers(0, 999))
def test_a_chain_is_causal_attention(backend, dtype, nodes, prefix, group, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(1, 2 * group, prefix + nodes, dim, generator=generator, dtype=dtype)
    key, value = torch.randn(2, 1, 2, prefix + nodes, dim, generator=generator, dtype=dtype)
    causal = torch.nn.functional.scaled_dot_product_attention(
        whole, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), is_causal=True)
    chain = ancestors(range(-1, nodes - 1))
    ours = tree_attention(whole[:, :, prefix:], key, value, chain, prefix, backend=backend)
    torch.testing.assert_close(ours, causal[:, :, prefix:], rtol=0, atol=EXACT[dtype])


@each_backend
@drawn
@given(problem=problems(dtypes=(torch.float32,)), garbage=st.sampled_from([float("nan"), float("inf"), 3e38]))
def test_what_lies_beyond_is_never_read(backend, problem, garbage):
    """Not even NaN behind a row's tree reaches its result."""
    query, key, value, mask, prefix = problem
    clean = tree_attention(*problem, backend=backend)
    for row, length in enumerate(prefix.tolist()):
        key[row, :, length + mask.shape[-1] :] = garbage
        value[row, :, length + mask.shape[-1] :] = garbage
    assert torch.equal(tree_attention(*problem, backend=backend), clean)


@each_backend
def test_a_node_may_see_the_prefix_alone(backend):
    """No tree does this, but the mask can say it, and a fused kernel's empty row must not count as a key of score 0.
    Beside it is a row without a prefix.
    """
    torch.manual_seed(0)
    mask = torch.tensor([[[True, False], [True, True]], [[True, False], [False, False]]])
    inputs = torch.randn(2, 4, 2, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8), mask
    truth, ours = (tree_attention(*inputs, torch.tensor([0, 7]), backend=name) for name in ("reference", backend))
    torch.testing.assert_close(ours, truth)
    with pytest.raises(ValueError, match="sees nothing"):
        tree_attention(*inputs, torch.tensor([7, 0]), backend=backend)


@each_backend
@drawn
@given(problem=problems(dtypes=(torch.float32,)), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
       further=st.integers(0, 3))
def test_a_shared_mask_serves_calls_that_differ_in_all_else(backend, problem, dtype, further):
    """Another dtype, another prefix, ungrouped heads: what was made for one call is never taken for another."""
    query, key, value, mask, prefix = problem
    shared, longer = SharedMask(mask), torch.nn.functional.pad(key, (0, 0, 0, further))
    ungrouped = query[:, : key.shape[1]]
    calls = [(query, key, key, prefix), (query, longer, longer, prefix + further), (ungrouped, key, key, prefix),
             (query.to(dtype), key.to(dtype), key.to(dtype), prefix), (query, key, value, prefix)]
    for q, k, v, length in calls:
        ours = tree_attention(q, k, v, shared, length, backend=backend)
        assert torch.equal(ours, tree_attention(q, k, v, mask, length, backend=backend))


@pytest.mark.parametrize("change, message", [
    (dict(tree_mask=torch.ones(3, 3)), "float32; give torch.bool"),
    (dict(tree_mask=torch.ones(2, 3, dtype=torch.bool)), r"take \[3, mk\]"),
    (dict(prefix_length=7), "need 10 stored keys.* there are 9"),
    (dict(prefix_length=torch.tensor([1, 2])), r"prefix_length is tensor\(\[1, 2\]\); give one int"),
    (dict(key=torch.randn(1, 3, 9, 8), value=torch.randn(1, 3, 9, 8)), "8 query heads over 3 key heads"),
    (dict(value=torch.randn(1, 2, 8, 8)), "do not fit"),
    (dict(query=torch.randn(8, 3, 8)), "do not fit"),
    (dict(query=torch.randn(1, 8, 0, 8), tree_mask=torch.ones(0, 0).bool()), "none of them empty"),
    (dict(value=torch.randn(1, 2, 9, 8).bfloat16(), backend="onepass"), "value torch.bfloat16; give all three in one"),
    (dict(query=torch.ones(1, 8, 3, 8, dtype=torch.int32)), "query is torch.int32"),
    (dict(tree_mask=torch.ones(3, 0).bool()), "of at least one key"),
    (dict(key=torch.randn(1, 2, 9, 8, device="meta")), "query is on cpu, key on meta, value on cpu"),
    (dict(prefix_length=6.0), "prefix_length is 6.0; give one int"),
    (dict(backend="quick"), "choose one of auto, reference, folded, onepass, triton"),
])
def test_wrong_inputs_name_value_and_remedy(change, message):
    right = dict(query=torch.randn(1, 8, 3, 8), key=torch.randn(1, 2, 9, 8), value=torch.randn(1, 2, 9, 8),
                 tree_mask=ancestors([-1, 0, 0]), prefix_length=6)
    with pytest.raises(ValueError, match=message):
        tree_attention(**{**right, **change})


@pytest.mark.parametrize("config, reason", [
    (LlamaConfig(), None), (Qwen3Config(), None), (GPT2Config(), None), (MistralConfig(), None),
    (MistralConfig(sliding_window=None), None), (BertConfig(is_decoder=True), None), (BertConfig(), "is_decoder=False"),
    (GPTNeoXConfig(), None),  # whose setting of the same name means nothing
    (BloomConfig(), "ALiBi"), (DogeConfig(), "its own mask for each head"), (MllamaConfig(), "attend to images"),
])
def test_models_that_cannot_host_a_tree_say_why(config, reason):
    found = can_host_tree(config)
    assert found is None if reason is None else reason in found


def test_as_a_models_attention_a_tree_lies_behind_all_other_keys_and_what_it_does_not_do_is_refused():
    query, key, mask = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 10, 8), ancestors([-1, 0, 0])
    named_prefix, found_prefix = (
        attention_forward(torch.nn.Identity(), query, key, key, None, tree_mask=mask, **options)[0]
        for options in (dict(prefix_length=7), {}))
    assert torch.equal(named_prefix, found_prefix)
    with pytest.raises(ValueError, match="position_bias"):
        attention_forward(torch.nn.Identity(), query, key, key, None, tree_mask=mask, position_bias=mask)


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
    monkeypatch.setattr("lib.attention.operator.unavailable", lambda: None)


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


def test_a_kernel_that_cannot_serve_is_passed_over_and_its_absence_is_logged_once(monkeypatch, caplog):
    assert chosen(dim=12) == chosen(dtype=torch.float64) == "folded"  # the kernel takes neither
    for module in ("operator", "backends"):
        monkeypatch.setattr(f"lib.attention.{module}.unavailable", lambda: "the processor has no avx512f")
    assert chosen(prefix=[6]) == chosen(prefix=[5]) == "folded"
    assert len(caplog.records) == 1 and "to 'folded': the processor has no avx512f" in caplog.text
