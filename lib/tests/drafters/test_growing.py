"""Grown trees live: the cached drafter against the plain oracle, greedy identity, and refusals."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.plain import PlainDrafter
from lib.forward.reduced import first_tokens
from lib.replay import live
from lib.tests import small_models
from lib.tests.decoding.test_decoding import own_greedy
from lib.tests.drafters.test_drafters import a_path, assert_cache_is_a_fresh_prefill, begin, draws
from lib.trees import growth, shapes
from lib.trees.growth.rules import Costs
from lib.verify import warp

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 17))
RULES = [growth.parse(name) for name in (
    "eagle2:3,4@9", "opttree:5,5@12", "opttree:4,6,0.2@10", "dyspec@14", "dyspec:2@6", "beam:2@7")]
RULES.append(growth.parse("smart@12", costs=Costs(tuple(1 + 0.06 * n for n in range(13)), 0.1)))
NAMES = [rule.name for rule in RULES]


@settings(deadline=None, max_examples=8)
@given(st.lists(st.sampled_from(RULES), min_size=2, max_size=3), st.integers(0, 2**32 - 1))
def test_whatever_is_accepted_grown_trees_are_the_oracles(rules, seed):
    rng = random.Random(seed)
    fast, plain = LanguageModelDrafter(DRAFTER), PlainDrafter(DRAFTER)
    for drafter in (fast, plain):
        begin(drafter)
    rows = 4
    for rule in [*rules, shapes.kary(2, 2)]:  # a static shape may follow
        calls, drafts, expected = fast.calls, fast.propose(rule, draws()), plain.propose(rule, draws())
        assert fast.calls - calls == max(fast.levels) <= rule.max_depth, "one forward pass per level"
        for draft, other, levels in zip(drafts, expected, fast.levels, strict=True):
            assert draft.tree == other.tree and torch.equal(draft.tokens, other.tokens)
            assert draft.tree.budget <= rule.budget and draft.tree.max_depth <= levels
        accepted = [a_path(draft.tree, rng) for draft in drafts]
        bonus = [rng.randrange(1, small_models.VOCABULARY) for _ in range(rows)]
        for drafter in (fast, plain):
            drafter.commit(accepted, bonus)
        assert_cache_is_a_fresh_prefill(fast, plain.texts)
        if rows > 1 and rng.random() < 0.5:
            staying = sorted(rng.sample(range(rows), rows - 1))
            rows -= 1
            for drafter in (fast, plain):
                drafter.select(staying)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_greedy_output_is_the_targets_own_in_a_ragged_batch(rule):
    trees = []
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=rule, max_new_tokens=25,
                       observe=lambda rows, drafts, decided: trees.append([draft.tree for draft in drafts]))
    assert done.new_tokens == [own_greedy(prompt, 25) for prompt in PROMPTS]
    assert any(found.accepted for found in done.rounds)
    if not rule.name.startswith("beam"):
        assert any(len(set(together)) > 1 for together in trees), "rows grow trees of their own"


def test_a_rule_is_decoded_by_its_name():
    by_name, by_rule = (live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=shape, max_new_tokens=9)
                        for shape in ("dyspec@6", growth.parse("dyspec@6")))
    assert by_name.new_tokens == by_rule.new_tokens
    with pytest.raises(ValueError, match="neither a shape .* nor a growth rule"):
        live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape="dyspac@6", max_new_tokens=9)


def test_grown_trees_of_several_models_merge():
    models = DRAFTER, small_models.related(TARGET, 5, noise=0.5)
    pair = MergedDrafter([LanguageModelDrafter(model) for model in models])
    done = live.decode(TARGET, pair, PROMPTS[:2], shape="dyspec@6", max_new_tokens=12)
    assert done.new_tokens == [own_greedy(prompt, 12) for prompt in PROMPTS[:2]]
    assert max(found.drafted for found in done.rounds) > 6


def test_confidence_comes_with_a_grown_tree_where_asked_for():
    drafter = begin(LanguageModelDrafter(DRAFTER, keep_probs=True, temperature=0.7))
    oracle = PlainDrafter(DRAFTER)
    for row, draft in enumerate(drafter.propose(growth.parse("dyspec@9"), draws())):
        prompt = small_models.prompts(5, (3, 9, 5, 1))[row].tolist()
        for node in set(draft.tree.parents[1:].tolist()):
            text = prompt + [row + 1] + draft.tokens[list(draft.tree.path(node))[1:]].tolist()
            torch.testing.assert_close(draft.probs[node], warp(oracle.logits(text), 0.7))
    assert begin(LanguageModelDrafter(DRAFTER)).propose(growth.parse("dyspec@9"), draws())[0].probs is None


def test_a_rule_that_asks_for_nothing_costs_no_forward():
    drafter = begin(LanguageModelDrafter(DRAFTER))
    calls = drafter.calls
    assert [draft.tree.budget for draft in drafter.propose(growth.parse("dyspec@0"), draws())] == [0] * 4
    drafter.commit([[]] * 4, [5] * 4)
    assert drafter.calls == calls and [len(tail) for tail in drafter.tails] == [2] * 4


def test_wider_than_the_vocabulary_is_as_wide_as_it():
    drafter = begin(LanguageModelDrafter(first_tokens(DRAFTER, 3)))
    assert [draft.tree for draft in drafter.propose(growth.parse("dyspec:1@9"), draws())] == [shapes.star(3)] * 4


def test_what_cannot_be_grown_is_refused():
    with pytest.raises(ValueError, match="proposal is 'iid'"):
        begin(LanguageModelDrafter(DRAFTER, proposal="iid")).propose(growth.parse("dyspec@4"), draws())
    with pytest.raises(ValueError, match="'ddtree:4@4' grows over one distribution per depth"):
        begin(LanguageModelDrafter(DRAFTER)).propose(growth.parse("ddtree@4"), draws())
    short = LanguageModelDrafter(small_models.llama(0, window=16))
    short.start([torch.ones(14, dtype=torch.long)])
    short.commit([[]], [1])
    assert short.propose(growth.parse("dyspec:2@4"), draws())
    with pytest.raises(ValueError, match="17 positions"):
        short.propose(growth.parse("dyspec:3@4"), draws())
