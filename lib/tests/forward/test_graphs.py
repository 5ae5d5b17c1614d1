"""The function of static shapes that CUDA graphs hold gives what the layers give, round after round, on a CPU.

As on a GPU, each new bucket is first called with inputs made up for the warm-up, later calls overwrite its results, and
few buckets are held.
"""

from types import SimpleNamespace
from weakref import WeakKeyDictionary

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, LlamaConfig

from lib.decoding import generate, in_batches
from lib.decoding.records import Hooks
from lib.drafters import make
from lib.drafters.filling import top_tokens
from lib.drafters.heads.static_fill import StaticFill, static_fill
from lib.forward import graphs
from lib.forward.captured import MOST, WARM_UPS, Captured, Graphs, Inputs
from lib.forward.load import ran_by_name
from lib.forward.passes import COMPILED, GRAPHS, LAYERS, choice, forward_pass, graphs_refusal
from lib.forward.prefill import prefill
from lib.forward.quantize import quantize_int8
from lib.models.cache import TreeCache
from lib.tests import small_heads, small_models
from lib.tests.forward.test_passes import SIZES, block, made
from lib.trees.tree import Tree

EXACT = dict(atol=1e-10, rtol=1e-10)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Warm-ups and replays, three buckets, few moves in a call, and buffers that begin small."""
    call = Graphs.call

    def warmed_up(self, bucket, make_inputs):
        def warm_up():
            inputs, run = make_inputs()
            results = [run() for _ in range(WARM_UPS)][-1]

            def replay():
                for kept, new in zip(tree_leaves(results), tree_leaves(run()), strict=True):
                    if kept is not None:
                        kept.copy_(new)
                return results

            return inputs, replay

        return call(self, bucket, warm_up)

    monkeypatch.setattr(Graphs, "call", warmed_up)
    monkeypatch.setattr("lib.forward.captured.MOST", 3)
    monkeypatch.setattr("lib.forward.graphs.SPARE", 0)
    monkeypatch.setattr("lib.forward.graphs.MOVED", 2)


@st.composite
def rounds(draw):
    """Prompts' lengths, and for each round: blocks of trees (parents per row), a seed, the rows that stay."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    several, rows = [], len(lengths)
    for _ in range(draw(st.integers(1, 5))):
        blocks = []
        for size in draw(st.lists(st.integers(1, 18), min_size=1, max_size=2)):
            blocks.append([[-1, *(draw(st.integers(0, node)) for node in range(size - 1))] for _ in range(rows)])
        stay = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True))
        several.append((blocks, draw(st.integers(0, 999)), stay))
        rows = len(stay)
    return lengths, several


MODEL = small_models.llama(0)


@torch.inference_mode()
@settings(deadline=None, max_examples=30)
@given(rounds())
def test_any_rounds_are_those_of_the_layers(drawn):
    """Random trees, a second block after a pending one, accepted paths, rows that end, texts and buffers that grow."""
    lengths, several = drawn
    runs = [forward_pass(MODEL, name) for name in (LAYERS, GRAPHS)]
    caches = [prefill(run, small_models.prompts(1, lengths)).cache for run in runs]
    for blocks, seed, stay in several:
        generator, rows = torch.Generator().manual_seed(seed), len(blocks[0])
        for parents in blocks:
            trees, pending = [Tree(each) for each in parents], caches[0].pending
            tokens = torch.randint(1, 24, (rows, trees[0].size), generator=generator)
            depth = pending + torch.stack([torch.tensor(tree.depth) for tree in trees])
            mask = torch.stack([torch.tensor(tree.mask) for tree in trees])
            mask = torch.cat([torch.rand(*mask.shape[:2], pending, generator=generator) < 0.5, mask], dim=-1)
            asked = {"output_hidden_states": seed % 2 == 0, "logits_to_keep": seed % 3}
            theirs, ours = (run(tokens, depth, mask, cache, **asked) for run, cache in zip(runs, caches))
            torch.testing.assert_close(ours.logits, theirs.logits, **EXACT)
            for own, other in zip(ours.hidden_states or (), theirs.hidden_states or (), strict=True):
                torch.testing.assert_close(own, other, **EXACT)
            if not seed % 3:
                assert torch.equal(ours.best[:rows, : tokens.shape[1]], theirs.logits.argmax(-1))
        kept = [sorted(set(torch.randint(0, caches[0].pending, (5,), generator=generator).tolist())) for _ in trees]
        for cache in caches:
            cache.commit(kept)
            if len(stay) < rows:
                cache.select(torch.tensor(stay))
    assert caches[0].rows.as_list == caches[1].rows.as_list


@pytest.mark.parametrize("kind, shape, rule, adjust", [
    ("model", "kary:2@14", "greedy", None), ("early_exit:1", "kary:3@9", "greedy", lambda row, _, x: x.roll(1, -1)),
    ("reduced", "chain:3", "naive", None), ("model", "dyspec@8", "greedy", None),
    ("eagle3", "kary:2@14", "greedy", None), ("eagle", "kary:3@9", "greedy", None),
    ("eagle3", "chain:1", "greedy", None), ("eagle", "chain:3", "naive", None)])
def test_texts_in_float64_are_those_of_the_layers(kind, shape, rule, adjust, monkeypatch):
    """Of target and drafter, whose trees are filled in one call; a second text takes over the buffers."""
    target = small_models.llama(3)
    options = {"vocabulary": torch.arange(22, 1, -1)} if kind == "reduced" else {}
    options |= {"folder": small_heads.folder(kind, target)} if "eagle" in kind else {}
    kind = kind.replace("reduced", "model")
    pair = SimpleNamespace(target=target, draft_model=small_models.related(target, 4, noise=0.2))
    ids, mask = next(in_batches(small_models.prompts(5, (4, 9, 17)), 3))
    results = {}
    for name, fills in ((LAYERS, static_fill), (GRAPHS, StaticFill)):
        monkeypatch.setattr("lib.drafters.eagle.static_fill", fills)
        monkeypatch.setattr("lib.forward.passes.choice", lambda model, device: name)
        monkeypatch.setattr("lib.forward.passes._KERNELS", WeakKeyDictionary())
        for rows in (slice(0, 1), slice(0, 3)):
            done = generate(target, make(kind, pair, **options), ids[rows], attention_mask=mask[rows], shape=shape,
                            rule=rule, eos_token_id=7, temperature=0.0 if rule == "greedy" else 1.0, max_new_tokens=15,
                            generator=torch.Generator().manual_seed(1), hooks=Hooks(adjust=adjust))
            results[name, rows.stop] = done.new_tokens, [(found.row, found.accepted) for found in done.rounds]
            assert done.forward == name
    assert results[LAYERS, 1] == results[GRAPHS, 1] and results[LAYERS, 3] == results[GRAPHS, 3]


@torch.inference_mode()
def test_two_texts_of_a_model_may_take_turns():
    """The one that leaves the buffers keeps its keys and values, moves that wait included, also for the layers."""
    runs = [forward_pass(MODEL, name) for name in (LAYERS, GRAPHS)]
    texts = [[prefill(run, small_models.prompts(seed, (5, 9))).cache for run in runs] for seed in (1, 2)]
    tokens = torch.randint(1, 24, (2, 6), generator=torch.Generator().manual_seed(0))
    for turn in (0, 1, 0, 0, 1):
        outputs = [run(tokens, torch.arange(6), None, cache).logits for run, cache in zip(runs, texts[turn])]
        torch.testing.assert_close(*outputs, **EXACT)
        for cache in texts[turn]:
            cache.commit([[0, 2, 5], [1, 4]])
    outputs = [runs[0](tokens, torch.arange(6), None, cache).logits for cache in texts[1]]
    torch.testing.assert_close(*outputs, **EXACT)


def test_the_least_recently_used_bucket_leaves(monkeypatch):
    monkeypatch.setattr("lib.forward.captured.MOST", MOST)
    held = Graphs(torch.device("cpu"))
    for bucket in (*range(MOST), 0, MOST):
        held.call(bucket, lambda: (Inputs({"x": (2, 3), "y": (1,)}, held.device), lambda: None))
    assert held.captured == tuple(Captured(bucket, 0.0, 0) for bucket in (*range(2, MOST), 0, MOST))
    held.forget()
    assert held.captured == ()


def test_one_compiled_code_serves_all_layers_of_a_bucket(monkeypatch):
    compile_with, codes = torch.compile, []

    def seen(graph, example):
        codes.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda layer, **given: compile_with(layer, backend=seen, **given))
    model = made()
    for lengths in [(2, 3, 4), (5, 9), (7,), (3, 9, 5, 7)]:
        ours, theirs = (block(model, name, lengths)[0] for name in (COMPILED, LAYERS))
        torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-5, rtol=1e-4)
    assert len(codes) == len(forward_pass(model, COMPILED).blocks.captured) == 3


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3), st.integers(1, 6))
def test_of_equal_scores_the_lower_token_comes_first(scores, count):
    scores = torch.tensor(scores).float()
    assert torch.equal(graphs._best_tokens(scores, count), top_tokens(scores, count))


def test_what_no_graph_can_hold_is_refused_with_the_reason():
    eight = made()
    quantize_int8(eight)
    rotation = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    for model, device, reason in [
            (made(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)), "cuda", "GPT2"),
            (made(LlamaConfig(**SIZES, rope_parameters=rotation)), "cpu", "dynamic"),
            (MODEL, "cuda", "not float64"), (eight, "cuda", "int8"), (made(), "mps", "graphs are for CUDA")]:
        assert reason in graphs_refusal(model, device)
    assert choice(made(), "cuda:0") == GRAPHS and choice(eight, "cuda") == LAYERS and choice(MODEL, "cuda") == LAYERS
    assert [ran_by_name(["base"], dtype, "cuda")["base"] for dtype in ("bfloat16", "int8")] == [GRAPHS, LAYERS]
    with pytest.raises(ValueError, match="GPT2LMHeadModel cannot run as 'graphs:compiled': .*; leave `forward` out"):
        forward_pass(made(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)), COMPILED)


@torch.inference_mode()
def test_blocks_larger_than_any_bucket_run_in_the_layers():
    size, caches = graphs.NODES[-1] + 1, (TreeCache(), TreeCache())
    tokens = torch.ones(1, size, dtype=torch.long)
    for _ in range(2):
        outputs = [forward_pass(MODEL, name)(tokens, torch.arange(size), None, cache).logits
                   for name, cache in zip((LAYERS, GRAPHS), caches)]
        torch.testing.assert_close(*outputs, **EXACT)
        for cache in caches:
            cache.commit([[0, 1]])


@pytest.mark.parametrize("captures", [True, False])
def test_by_itself_a_gpu_takes_graphs_where_a_first_call_succeeds(captures, monkeypatch, caplog):
    monkeypatch.setattr("lib.forward.passes.choice", lambda model, device: GRAPHS)
    if not captures:
        monkeypatch.setattr(Graphs, "call", lambda *_: (_ for _ in ()).throw(RuntimeError("operation not permitted")))
    run = forward_pass(made())
    assert (run.name == GRAPHS) == captures
    assert ("without CUDA graphs: RuntimeError: operation not permitted" in caplog.text) != captures
