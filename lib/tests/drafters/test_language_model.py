"""The language-model drafter against the plain oracle of whole forward passes, in float64, over all or some tokens."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay
from lib.drafters import filling, vocabulary
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import make
from lib.forward.reduced import first_tokens, narrow, reduced
from lib.tests import small_models
from lib.tests.drafters.made import MODEL, OTHER, PAIR, PROMPTS, begin, draws, go_on, texts_at_start
from lib.tests.plain_drafter import PlainDrafter
from lib.tests.replay.test_replay import trees
from lib.trees import Tree, named, shapes
from lib.trees.growth import Costs
from lib.verify import warp

SOME = torch.tensor([17, 2, 3, 5, 7, 11, 13])
MODELS = MODEL, reduced(MODEL, SOME)
SEEDS = st.integers(0, 2**32 - 1)
RULES_OF_GROWTH = [
    *map(named, ("eagle2:3,4@9", "opttree:5,5@12", "opttree:4,6,0.2@10", "dyspec@14", "dyspec:2@6")),
    named("smart@12", costs=Costs(tuple(1 + 0.06 * n for n in range(13)), 0.1))]


def assert_cache_is_a_fresh_prefill(drafter, texts):
    """The cache holds each row's text but for its tail: the root, and the last accepted node where that was a leaf."""
    for row, text in enumerate(texts):
        length = int(drafter.cache.lengths[row])
        assert text[length:] == drafter.tails[row]
        fresh = LanguageModelDrafter(drafter.model)
        fresh.start([torch.tensor(text[:length])])
        for layer, expected in zip(drafter.cache.layers, fresh.cache.layers):
            torch.testing.assert_close(layer.keys[row, :, :length], expected.keys[0, :, :length])
            torch.testing.assert_close(layer.values[row, :, :length], expected.values[0, :, :length])


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(MODELS), st.lists(trees(8) | st.sampled_from([*RULES_OF_GROWTH, named("dyspec@0")]), min_size=2,
                                         max_size=4), SEEDS)
def test_whatever_is_accepted_top_k_drafts_are_the_oracles(model, shapes_or_rules, seed):
    rng, rows = random.Random(seed), len(PROMPTS)
    fast, plain = begin(LanguageModelDrafter(model)), begin(PlainDrafter(model))
    for shape in shapes_or_rules:
        if isinstance(shape, Tree) and shape.rank.max() >= len(SOME):
            continue
        calls, drafts, expected = fast.calls, fast.propose(shape, draws()), plain.propose(shape, draws())
        assert fast.calls - calls == max(fast.levels) <= shape.max_depth, "one forward pass per level"
        for draft, other, levels in zip(drafts, expected, fast.levels, strict=True):
            assert draft.tree == other.tree and torch.equal(draft.tokens, other.tokens)
            assert draft.tree == shape or draft.tree.budget <= shape.budget and draft.tree.max_depth <= levels
        assert plain.texts == go_on(rng, (fast, plain), drafts, plain.texts)
        assert_cache_is_a_fresh_prefill(fast, plain.texts)
        assert all(len(tail) <= 2 for tail in fast.tails) or not shape.budget, "only an accepted leaf waits"
        if rows > 1 and rng.random() < 0.4:
            staying = sorted(rng.sample(range(rows), rows - 1))
            rows -= 1
            for drafter in (fast, plain):
                drafter.select(staying)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([*MODELS, reduced(MODEL, SOME[:2])]), trees(8), st.sampled_from(["iid", "without_replacement"]),
       SEEDS)
def test_samples_are_the_oracles_draw_for_draw(model, tree, proposal, seed):
    """Also where a node has more children than the drafter knows tokens."""
    rng, streams = random.Random(seed), (draws(seed), draws(seed))
    fast, plain = (kind(model, proposal=proposal, temperature=1.3) for kind in (LanguageModelDrafter, PlainDrafter))
    for drafter in (fast, plain):
        drafter.start(PROMPTS[:1])
        drafter.commit([[]], [2])
    for _ in range(3):
        (draft,), (expected,) = (drafter.propose(tree, stream) for drafter, stream in zip((fast, plain), streams))
        assert draft.tree == expected.tree and draft.proposal == expected.proposal == proposal
        assert torch.equal(draft.tokens, expected.tokens) and torch.equal(draft.counts, expected.counts)
        for node in set(draft.tree.parents[1:].tolist()):
            torch.testing.assert_close(draft.probs[node], expected.probs[node])
        go_on(rng, (fast, plain), [draft], plain.texts)
        assert_cache_is_a_fresh_prefill(fast, plain.texts)


@pytest.mark.parametrize("model", MODELS, ids=["all tokens", "some"])
@pytest.mark.parametrize("proposal, shape", [
    *((proposal, "expansion:3,2,1") for proposal in ("top_k", "iid", "without_replacement")), ("top_k", "dyspec@9")])
def test_in_a_batch_every_row_has_its_own_distributions(model, proposal, shape):
    drafter = begin(LanguageModelDrafter(model, proposal=proposal, temperature=0.7))
    drafter.with_probs = True
    oracle, texts = PlainDrafter(model), texts_at_start()
    for seed in range(3):
        drafts = drafter.propose(named(shape), draws(seed))
        for text, draft in zip(texts, drafts):
            for node in set(draft.tree.parents[1:].tolist()):
                path = text + draft.tokens_of(draft.tree.path(node)[1:])
                torch.testing.assert_close(draft.probs[node], warp(oracle.logits(path), 0.7))
            assert shape == "dyspec@9" or not draft.probs[draft.tree.leaves.copy()].any(), "leaves draft nothing"
        texts = go_on(random.Random(seed), [drafter], drafts, texts)
    drafter.with_probs = False
    assert proposal != "top_k" or drafter.propose(named(shape), draws())[0].probs is None


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_equal_scores_go_to_the_lowest_token(scores, count):
    table = torch.tensor(scores, dtype=torch.float64)
    expected = [sorted(range(6), key=lambda token: (-row[token], token)) for row in scores]
    assert filling.top_tokens(table, count).tolist() == [row[:count] for row in expected]
    tokens = torch.tensor([row[count - 1] for row in expected])
    assert filling.rank_of(table, tokens).tolist() == [count - 1] * len(scores)


@pytest.mark.parametrize("settings, shape, message", [
    (dict(proposal="iid", temperature=0), "chain:2", "temperature is 0"), ({}, "star:25", "24 tokens"),
    (dict(proposal="iid"), "dyspec@4", "not of 'iid'")])
def test_shapes_and_settings_that_do_not_fit_are_refused(settings, shape, message):
    with pytest.raises(ValueError, match=message):
        begin(LanguageModelDrafter(MODEL, **settings)).propose(named(shape), draws())


# ------------------------------------------------------------------------------------------- part of the vocabulary


def test_logits_are_the_models_own_and_elsewhere_minus_infinity():
    tokens, part_of_model = PROMPTS[1][None], reduced(MODEL, SOME)
    whole, part = MODEL(tokens).logits, part_of_model(tokens).logits
    torch.testing.assert_close(part[..., SOME], whole[..., SOME])
    assert part.shape == whole.shape and (part == -torch.inf).sum() == part.numel() - part[..., SOME].numel()
    model, output = narrow(part_of_model)
    assert torch.equal(output.tokens, SOME.sort().values) and narrow(part_of_model)[0] is model
    torch.testing.assert_close(model(tokens).logits, whole[..., output.tokens])
    assert MODEL(tokens).logits.equal(whole) and narrow(MODEL) == (MODEL, None), "the model itself has not changed"
    hooked = small_models.llama(3)
    hooked.forward = hooked.forward  # as accelerate's hooks leave it: bound to this very model
    assert narrow(reduced(hooked, SOME))[0](tokens).logits.shape[-1] == len(SOME)


def test_a_padded_vocabulary_is_cut_to_the_targets():
    torch.testing.assert_close(first_tokens(MODEL, 9)(PROMPTS[1][None]).logits, MODEL(PROMPTS[1][None]).logits[..., :9])
    padded = SimpleNamespace(**vars(PAIR) | {"draft_model": small_models.llama(3, vocabulary=30)})
    assert begin(make("model", padded)).propose(named("dyspec:1@40"), draws())[0].tree == shapes.star(24)
    few = begin(LanguageModelDrafter(first_tokens(MODEL, 3)))
    assert [draft.tree for draft in few.propose(named("dyspec:1@9"), draws())] == [shapes.star(3)] * 5


def test_in_a_trace_tokens_that_it_cannot_draft_rank_beyond_the_others():
    model, names = reduced(OTHER, SOME), list("abcde")
    trace = replay.record(MODEL, {"d": model}, PROMPTS, names=names, kinds=names, max_new_tokens=20)
    unknown = ~np.isin(trace.tokens[:, 1:], SOME) & (trace.ranks["d"] >= 0)
    assert unknown.any() and (trace.ranks["d"][unknown] >= len(SOME)).all() and not trace.probs["d"][unknown].any()


@pytest.mark.parametrize("tokens", [[], [3, 3], [-1, 2], [24], [[1]]], ids=str)
def test_tokens_that_the_model_does_not_have_are_refused(tokens):
    with pytest.raises(ValueError, match="give one or more of 0 to 23, each once"):
        reduced(MODEL, torch.tensor(tokens, dtype=torch.long))


def test_a_number_means_the_targets_own_most_frequent_tokens(tmp_path, monkeypatch):
    texts = [[5, 5, 1], np.array([9, 1, 5, 2], dtype=np.uint16)]
    assert vocabulary.most_frequent(texts).tolist() == [5, 1, 2, 9], "of equals the lower"
    monkeypatch.setattr(vocabulary, "SHIPPED", tmp_path)
    (tmp_path / "t").mkdir()
    np.save(tmp_path / "t" / vocabulary.FILE, np.array([9, 4, 6, 1], dtype=np.uint16))
    pair = SimpleNamespace(target=MODEL, draft_model=OTHER, target_name="t")
    assert make("model:vocabulary=3", pair).output.tokens.tolist() == [4, 6, 9]
    assert make("combined", pair, {"vocabulary": torch.tensor([8])}).drafter.output.tokens.tolist() == [8]
    for other, count, listed in ((pair, 0, 4), (pair, 5, 4), (PAIR, 8, 0)):
        with pytest.raises(ValueError, match=f"vocabulary is {count}, but {listed} frequent tokens ship for target"):
            make("model", other, {"vocabulary": count})
