"""Drafters made of others against the plain oracle, policies of length against their definitions, merged trees, choice
by speed; the registry's options; controls.
"""

import random
from collections import defaultdict
from functools import reduce
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters import choosing
from lib.drafters.adaptive import AdaptiveDrafter, Complexity, History, WhereItPays, cut
from lib.drafters.choosing import ChoosingDrafter
from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import FirstBranch, NoDrafter, first_levels, merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.registry import make, parse
from lib.drafters.text_drafters import LookupDrafter, SuffixAutomatonDrafter
from lib.tests.drafters.made import MODEL, OTHER, PAIR, begin, decode, draws, go_on, made, texts_at_start
from lib.tests.drafters.test_language_model import SEEDS, assert_cache_is_a_fresh_prefill
from lib.tests.plain_drafter import PlainDrafter
from lib.tests.replay.test_replay import trees
from lib.trees import shapes
from lib.verify import Draft

# ------------------------------------------------------------------------------------ the drafters inside, and the text


def alone(drafter, texts, shape):
    """The drafts of a drafter that reads these texts anew."""
    drafter.start([torch.tensor(text) for text in texts])
    return drafter.propose(shape, draws())


def adaptive(drafter, texts, shape):
    depths = drafter.policy.depths(drafter.states)
    model = OTHER if isinstance(drafter.policy, Complexity) and min(depths) < 8 else MODEL
    return [[cut(draft, depth)] for draft, depth in zip(alone(PlainDrafter(model), texts, shape), depths)]


def combined(drafter, texts, shape):
    matches = alone(lookup := SuffixAutomatonDrafter(), texts, shape)
    return [[match] if text.matched() >= drafter.enough and match.tree.budget else [other] for text, match, other in
            zip(lookup.texts, matches, alone(PlainDrafter(MODEL), texts, shape))]


def merged(drafter, texts, shape):
    return zip(alone(PlainDrafter(MODEL), texts, shape), alone(PlainDrafter(OTHER), texts, shape))


def chosen(drafter, texts, shape):
    short = max(map(len, texts)) <= 14
    return [[draft] for draft in alone(PlainDrafter(MODEL) if short else SuffixAutomatonDrafter(), texts, shape)]


def models():
    return LanguageModelDrafter(MODEL), LanguageModelDrafter(OTHER)


def families(*drafts):
    """By path of tokens the tokens that follow it in these drafts, best first, those of the first draft first."""
    found = defaultdict(dict)
    for draft in drafts:
        for node in range(draft.tree.size):
            path = tuple(draft.tokens_of(draft.tree.path(node)))
            found[path] |= dict.fromkeys(draft.tokens_of(draft.tree.children(node)))
    return {path: list(tokens) for path, tokens in found.items()}


@pytest.mark.parametrize("made_of, expected", [
    (lambda: AdaptiveDrafter(*models(), policy=History()), adaptive),
    (lambda: AdaptiveDrafter(*models(), policy=Complexity()), adaptive),
    (lambda: CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), 2), combined),
    (lambda: MergedDrafter(*models()), merged),
    (lambda: ChoosingDrafter(LanguageModelDrafter(MODEL), SuffixAutomatonDrafter(), length=14), chosen)])
@settings(deadline=None, max_examples=6)
@given(st.lists(trees(8), min_size=2, max_size=3), SEEDS)
def test_drafts_are_those_of_the_drafters_inside_and_follow_the_texts(made_of, expected, forest, seed):
    rng, drafter, texts = random.Random(seed), begin(made_of()), texts_at_start()
    for shape in forest:
        parts, drafts = expected(drafter, texts, shape), drafter.propose(shape, draws())
        for draft, of_row in zip(drafts, parts, strict=True):
            assert families(draft) == families(*of_row) and len(families(draft)) == draft.tree.size
        texts = go_on(rng, [drafter], drafts, texts, tokens=4)  # few, so that matches come and go
        for model in drafter.drafters:
            if isinstance(model, LanguageModelDrafter):
                assert_cache_is_a_fresh_prefill(model, texts)
        staying = sorted(rng.sample(range(len(texts)), max(2, len(texts) - 1)))
        drafter.select(staying)
        texts = [texts[row] for row in staying]


# --------------------------------------------------------------------------------------------------- policies of length

OUTCOMES = st.lists(st.integers(0, 9).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))),
                    max_size=14)  # levels drafted, tokens accepted


def after(policy, outcomes, prompt=()):
    """A row's state after a prompt and a history of rounds."""
    return reduce(lambda state, outcome: policy.after(state, *outcome, ()), outcomes,
                  policy.after(policy.start, 0, 0, prompt))


@pytest.mark.parametrize("outcomes, depth", [
    ([], 4), ([(5, 5)], 5), ([(5, 2)], 3), ([(5, 4)] * 9, 4), ([(2, 1)] * 9, 4), ([(8, 8)] * 9, 8), ([(2, 0)] * 9, 2),
    ([(0, 0), (5, 5), (0, 0)], 5), ([(2, 0)] * 9 + [(1, 1)] * 8, 2), ([(2, 0)] * 9 + [(1, 1)] * 9, 3)])
def test_history_follows_the_mean_of_the_last_ten_rates(outcomes, depth):
    assert History().depths([after(History(), outcomes)]) == [depth]


@pytest.mark.parametrize("text, depth", [
    (range(9), 8), ([1] * 10, 8), ([*range(5)] * 2, 5), (range(99), 5), (range(250), 3), ([1] * 1000, 5),
    ([*range(500)] * 2, 3), ([*range(499)] * 2, 5), ([*range(490)] * 3, 5)])
def test_complexity_is_that_of_the_rows_text(text, depth):
    """0.6 distinct / length + 0.4 min(length / 1000, 1), from 0.3 and from 0.7 on."""
    assert Complexity().depths([after(Complexity(), [], text)]) == [depth]


def test_drafting_stops_where_it_does_not_pay_and_is_tried_again():
    policy = WhereItPays(costs=[1 + 0.4 * levels for levels in range(17)])
    state = policy.start
    assert policy.depths([state]) > [0]
    for _ in range(4):
        state = policy.after(state, *policy.depths([state]), 0, ())
    idle = 0
    while policy.depths([state]) == [0]:
        state, idle = policy.after(state, 0, 0, ()), idle + 1
    assert 5 <= idle <= 100
    assert policy.depths([after(policy, [(4, 4)] * 8)])[0] > 4


@settings(deadline=None)
@given(st.lists(OUTCOMES, min_size=1, max_size=4), st.floats(0.05, 0.8), st.floats(0, 0.5))
def test_a_batch_drafts_the_length_that_is_best_for_all_its_rows(histories, level, once):
    policy = WhereItPays(costs=[1.0, *(1 + once + level * levels for levels in range(1, 7))])
    states = [after(policy, outcomes) for outcomes in histories]
    depths = policy.depths(states)
    assert len(set(depths)) == 1, "a narrower row would be padded to the widest"
    speeds = [sum(policy.acceptance(state) ** depth for state in states for depth in range(length + 1)) / cost
              for length, cost in enumerate(policy.costs)]
    assert speeds[depths[0]] == pytest.approx(max(speeds)) or depths[0] == 1 and max(speeds) == speeds[0]


@given(trees(12), st.integers(0, 5))
def test_a_cut_keeps_the_choices_that_are_no_deeper(tree, depth):
    part = cut(Draft(tree, torch.arange(tree.size), "top_k"), depth)
    choices = [(), *tree.choices()]
    assert [(), *part.tree.choices()] == [choices[node] for node in part.token_list]
    assert sorted(part.tree.choices()) == sorted(choice for choice in tree.choices() if len(choice) <= depth)
    assert first_levels(tree, depth) is first_levels(tree, depth), "one object per shape"


# ------------------------------------------------------------------------------------- look-up, chains, merging, choice


def test_a_match_that_is_just_long_enough_costs_no_forward_pass():
    drafter = CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), 4)
    drafter.start([torch.tensor([1, 2, 3, 4, 5, 1, 2, 3])])
    drafter.commit([[]], [4])
    calls = drafter.calls
    (draft,) = drafter.propose(shapes.chain(2), None)
    assert draft.token_list == [4, 5, 1] and drafter.calls == calls
    drafter.commit([[1]], [9])
    drafter.propose(shapes.chain(2), None)
    assert drafter.calls == calls + 2


def test_of_drafts_that_are_trees_a_chain_is_kept():
    drafter = FirstBranch(LookupDrafter())
    drafter.start([torch.tensor([1, 5, 6, 1, 5, 7, 1])])
    (draft,) = drafter.propose(shapes.kary(2, 2), None)
    assert draft.tree.is_path and draft.token_list == [1, 5, 7] and drafter.traits == LookupDrafter().traits
    drafter.commit([[1, 2]], [9])
    assert drafter.drafter.texts[0].tokens[-4:] == [1, 5, 7, 9]


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6), st.none() | st.integers(0, 8))
def test_a_trie_holds_every_prefix_once(sequences, budget):
    draft = merge(9, sequences, budget)
    expected = {(9, *sequence[:n]) for sequence in sequences for n in range(len(sequence) + 1)} | {(9,)}
    paths = families(draft).keys()
    assert len(paths) == draft.tree.size
    assert paths == expected if budget is None else paths <= expected
    assert draft.tree.budget == min(len(expected) - 1 if budget is None else budget, len(expected) - 1)
    remaining = iter([[1, 2], [1, 3, 4], [5]])
    assert merge(9, remaining, 3).token_list == [9, 1, 2, 3] and next(remaining) == [5], "no more are read than fit"


def test_by_speed_each_is_tried_the_fastest_is_kept_and_a_change_is_noticed(monkeypatch):
    """The first drafter's rounds take a hundred seconds until round 60, then one."""
    clock, active = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(choosing.time, "perf_counter", lambda: clock.now)
    drafter = begin(ChoosingDrafter(LookupDrafter(), NoDrafter()))
    for number in range(120):
        drafts = drafter.propose(shapes.chain(2), None)
        active.append(drafter.active)
        clock.now += 10.0 if drafter.active else 100.0 if number < 60 else 1.0
        drafter.commit([[] for _ in drafts], [1] * len(drafts))
    assert active[:2] == [0, 1] and sum(active[:60]) > 50, "the second is faster, the first is tried now and then"
    assert 0 in active[2 : 2 + choosing.IDLE + 1] and not any(active[60 + 2 * choosing.IDLE :][:10])


# --------------------------------------------------------------------------------------------------- registry, controls


@pytest.mark.parametrize("spec, options, message", [
    ("hydra", {}, "'hydra'; choose one of none, model"), ("none:3", {}, "none takes no '3'; .* it takes nothing"),
    ("ngrams:", {}, "ngrams takes no ''"), ("ngrams:x", {}, "is 'ngrams:x', but ngrams takes no 'x'; .* enough=INT"),
    ("combined:1.5", {}, "takes no '1.5'.* enough=INT, behind=STR, vocabulary=INT"),
    ("model:size=8192", {}, "takes no 'size=8192'"), ("random:generator=3", {}, "takes no 'generator=3'"),
    ("random", {}, "missing a required argument: 'generator'"),
    ("lookup", {"size": 3}, "'lookup': got an unexpected keyword argument 'size'; it takes longest, shortest"),
    ("lookup:2:shortest=3", {}, "n-grams from 3 to 2"), ("model:3", {}, "proposal is '3'; choose one of top_k, iid"),
    ("adaptive:blind", {}, "policy is 'blind'; choose one of history, complexity, pays"),
    ("medusa", {}, "no head of kind 'medusa' exists for target 'none that ships'.*give the")])
def test_a_spec_that_cannot_be_made_is_refused_by_name(spec, options, message):
    with pytest.raises(ValueError, match=message):
        make(spec, PAIR, options)


def test_options_are_read_from_a_drafters_name():
    assert parse("combined:3:vocabulary=8192") == ("combined", {"enough": 3, "vocabulary": 8192})
    assert parse("model:iid:temperature=0.5") == ("model", {"proposal": "iid", "temperature": 0.5})
    assert make("lookup", PAIR, {"longest": 3}).longest == make("lookup:3", PAIR).longest == 3
    with pytest.raises(ValueError, match="the pair has no draft model"):
        make("model", SimpleNamespace(target=MODEL, draft_model=None, target_name="t"))


def test_random_tokens_are_hardly_ever_accepted():
    chance = decode(made("random"), shape="star:3")
    assert sum(record.accepted for record in chance.rounds) < sum(record.drafted for record in chance.rounds) / 3
