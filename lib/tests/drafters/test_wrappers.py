"""Drafters made of others against the plain oracle: policies of length against their definitions, look-up before a
model, merged trees, choice by speed and length, chains of drafts that are trees; the registry's options; controls.
"""

import random
from functools import reduce
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters import choosing
from lib.drafters.adaptive import (
    AdaptiveDrafter,
    Complexity,
    History,
    Policy,
    WhereItPays,
    first_levels,
    tokens_of_chains,
)
from lib.drafters.choosing import ChoosingDrafter
from lib.drafters.combined import CombinedDrafter
from lib.drafters.controls import RandomDrafter
from lib.drafters.drafter import NoDrafter, levels_of, merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter, merge_chosen
from lib.drafters.registry import make, parse
from lib.drafters.text_drafters import LookupDrafter, SuffixAutomatonDrafter
from lib.drafters.wrapper import FirstBranch
from lib.tests import small_models
from lib.tests.drafters.made import (
    MODEL,
    OTHER,
    PAIR,
    PROMPTS,
    begin,
    continuations,
    decode,
    draws,
    go_on,
    made,
    texts_at_start,
)
from lib.tests.drafters.test_language_model import SEEDS, assert_cache_is_a_fresh_prefill
from lib.tests.plain_drafter import PlainDrafter
from lib.tests.replay.test_replay import trees
from lib.trees import ROOT, named, shapes
from lib.verify import Draft

# levels drafted, tokens accepted, tokens that the text gained
OUTCOMES = st.lists(st.builds(lambda drafted, share, tokens: (drafted, round(share * drafted), tokens),
                              st.integers(0, 9), st.floats(0, 1), st.lists(st.integers(0, 30), max_size=9)),
                    max_size=14)


def same(draft, other):
    return draft.tree == other.tree and torch.equal(draft.tokens, other.tokens)


# --------------------------------------------------------------------------------------------------- policies of length


def after(policy, outcomes, prompt=()):
    """A row's state after a prompt and a history of rounds."""
    return reduce(lambda state, outcome: policy.after(state, *outcome), [(0, 0, prompt), *outcomes], policy.start)


def even_costs(level, once=0.0, most=16):
    """Costs of rounds of 0 to `most` levels, over plain decoding: `level` for each, `once` for any draft."""
    return 1.0, *(1 + once + levels * level for levels in range(1, most + 1))


@given(OUTCOMES)
def test_history_follows_the_mean_of_the_last_ten_rates(outcomes):
    rates, depth = [], 4
    for drafted, accepted, _ in outcomes:
        if drafted:
            rates.append(accepted / drafted)
            mean = sum(rates[-10:]) / len(rates[-10:])
            depth = min(8, depth + 1) if mean > 0.8 + 1e-12 else max(2, depth - 1) if mean < 0.5 - 1e-12 else depth
    assert History().depths([after(History(), outcomes)]) == [depth]


@given(st.lists(st.integers(0, 30), max_size=1200), OUTCOMES)
def test_complexity_is_that_of_the_rows_own_text(prompt, outcomes):
    text = prompt + [token for *_, tokens in outcomes for token in tokens]
    complexity = 0.6 * len(set(text)) / len(text) + 0.4 * min(len(text) / 1000, 1) if len(text) >= 10 else 0.1
    state, policy = after(Complexity(), outcomes, prompt), Complexity()
    assert policy.depths([state]) == [8 if complexity < 0.3 else 5 if complexity < 0.7 else 3]
    simple, hard = after(policy, [], [1] * 20), after(policy, [], range(2000))
    assert policy.drafter([simple, simple], 3) == 0 and policy.drafter([simple, hard], 3) == 2
    assert policy.drafter([hard], 2) == 1


def test_drafting_stops_where_it_does_not_pay_and_is_tried_again():
    policy = WhereItPays(costs=even_costs(0.4))
    state = policy.start
    assert policy.depths([state]) > [0]
    for _ in range(4):
        state = policy.after(state, *policy.depths([state]), 0, ())
    assert policy.depths([state]) == [0]
    idle = 0
    while policy.depths([state]) == [0]:
        state, idle = policy.after(state, 0, 0, ()), idle + 1
    assert 5 <= idle <= 100
    assert policy.depths([after(policy, [(4, 4, ())] * 8)])[0] > 4


@settings(deadline=None)
@given(st.lists(OUTCOMES, min_size=1, max_size=4), st.floats(0.05, 0.8), st.floats(0, 0.5))
def test_a_batch_drafts_the_length_that_is_best_for_all_its_rows(histories, level, once):
    policy = WhereItPays(costs=even_costs(level, once, most=6))
    states = [after(policy, outcomes) for outcomes in histories]
    depths = policy.depths(states)
    assert len(set(depths)) == 1, "a narrower row would be padded to the widest"
    speeds = [sum(tokens_of_chains(policy.acceptance(state), length)[-1] for state in states) / cost
              for length, cost in enumerate(policy.costs)]
    assert speeds[depths[0]] == pytest.approx(max(speeds)) or depths[0] == 1 and max(speeds) == speeds[0]


class Arbitrary(Policy):
    """A policy of arbitrary depths, and of arbitrary drafters."""

    start = 1

    def after(self, state, drafted, accepted, tokens):
        return (5 * state + accepted + 3) % 7 + 1

    def depths(self, states):
        return [state % 5 for state in states]

    def drafter(self, states, count):
        return sum(states) % count


@settings(deadline=None, max_examples=15)
@given(st.lists(trees(10), min_size=2, max_size=4), SEEDS)
def test_rows_of_different_depths_stay_with_their_texts(forest, seed):
    rng, rows = random.Random(seed), len(PROMPTS)
    drafter = begin(AdaptiveDrafter(LanguageModelDrafter(MODEL), LanguageModelDrafter(OTHER), policy=Arbitrary()))
    oracles = [begin(PlainDrafter(model)) for model in (MODEL, OTHER)]
    for shape in forest:
        oracle = oracles[drafter.policy.drafter(drafter.states, 2)]
        for draft, whole in zip(drafter.propose(shape, None), oracle.propose(shape, None), strict=True):
            assert same(draft, first_levels(whole, draft.tree.max_depth))
        oracles[0].texts = oracles[1].texts = go_on(rng, [drafter], drafter.drafts, oracle.texts)
        for model in drafter.drafters:
            assert_cache_is_a_fresh_prefill(model, oracle.texts)
        staying = sorted(rng.sample(range(rows), rows := max(2, rows - 1)))
        drafter.select(staying)
        oracles[0].select(staying)
        oracles[1].texts = oracles[0].texts


@given(trees(12), st.integers(0, 5))
def test_first_levels_keep_the_choices_that_are_no_deeper(tree, depth):
    tokens = torch.arange(tree.size)
    cut = first_levels(Draft(tree, tokens, "top_k"), depth)
    choices = [(), *tree.choices()]
    assert [(), *cut.tree.choices()] == [choices[node] for node in cut.token_list]
    assert sorted(cut.tree.choices()) == sorted(choice for choice in tree.choices() if len(choice) <= depth)
    assert levels_of(tree, depth)[0] is levels_of(tree, depth)[0], "one object per shape"


def test_an_adaptive_drafter_spends_fewer_forward_passes_where_little_is_accepted():
    fixed, pays = LanguageModelDrafter(OTHER), make("adaptive:pays", PAIR)
    for drafter in (fixed, pays):
        assert decode(drafter, shape="chain:8").new_tokens == continuations()
    assert pays.calls < fixed.calls
    with pytest.raises(ValueError, match="policy is 'blind'; choose one of history, complexity, pays"):
        make("adaptive:blind", PAIR)
    with pytest.raises(ValueError, match="'dyspec:4@8' decides itself"):
        begin(make("adaptive", PAIR)).propose(named("dyspec:4@8"), None)


# ----------------------------------------------------------------------------------------------- look-up before a model


@settings(deadline=None, max_examples=10)
@given(SEEDS, st.integers(1, 4))
def test_combined_rows_take_the_match_or_the_model_and_stay_with_their_texts(seed, enough):
    rng, shape = random.Random(seed), shapes.kary(2, 3)
    drafter = CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), enough)
    prompts = [torch.tensor([rng.randrange(1, 4) for _ in range(length)]) for length in (12, 3, 7)]
    drafter.start(prompts)
    drafter.commit([[]] * 3, [1] * 3)
    texts = [prompt.tolist() + [1] for prompt in prompts]
    for _ in range(4):
        lookup, oracle = SuffixAutomatonDrafter(), PlainDrafter(MODEL)
        lookup.start([torch.tensor(text) for text in texts])
        oracle.texts = texts
        sources = zip(oracle.propose(shape, None), lookup.propose(shape, None), lookup.matched())
        drafts = drafter.propose(shape, None)
        for draft, (by_model, by_text, matched) in zip(drafts, sources, strict=True):
            assert same(draft, by_text if matched >= enough and by_text.tree.budget else by_model)
        texts = go_on(rng, [drafter], drafts, texts, tokens=4)
        assert [text.tokens for text in drafter.lookup.texts] == texts
        assert_cache_is_a_fresh_prefill(drafter.drafter, texts)


def test_long_matches_cost_no_forward_pass():
    drafter = CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), 3)
    drafter.start([torch.tensor([1, 2, 3, 4, 5, 1, 2, 3])])
    drafter.commit([[]], [4])
    calls = drafter.calls
    (draft,) = drafter.propose(shapes.chain(2), None)
    assert draft.token_list == [4, 5, 1] and drafter.calls == calls
    drafter.commit([[1]], [9])
    drafter.propose(shapes.chain(2), None)
    assert drafter.calls == calls + 2
    with pytest.raises(ValueError, match="a match of 0 tokens"):
        CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), 0)


# --------------------------------------------------------------------------------------------------------- merged trees


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6), st.none() | st.integers(0, 8))
def test_a_trie_holds_every_prefix_once(sequences, budget):
    draft = merge(9, sequences, budget)
    prefixes = {tuple(draft.tokens_of(draft.tree.path(node)[1:])) for node in range(draft.tree.size)}
    expected = {tuple(sequence[:n]) for sequence in sequences for n in range(len(sequence) + 1)} | {()}
    assert len(prefixes) == draft.tree.size
    assert prefixes == expected if budget is None else prefixes <= expected
    assert draft.tree.budget == min(len(expected) - 1 if budget is None else budget, len(expected) - 1)
    remaining = iter([[1, 2], [1, 3, 4], [5]])
    assert merge(9, remaining, 3).token_list == [9, 1, 2, 3] and next(remaining) == [5], "no more are read than fit"


@settings(deadline=None, max_examples=12)
@given(st.lists(trees(8) | st.just(named("dyspec@6")), min_size=2, max_size=3), SEEDS)
def test_merged_drafts_are_the_union_and_stay_with_the_text(forest, seed):
    def paths(draft):
        return {tuple(draft.tokens_of(draft.tree.path(node))) for node in range(draft.tree.size)}

    rng, texts = random.Random(seed), texts_at_start()
    merged = begin(MergedDrafter(LanguageModelDrafter(MODEL), LanguageModelDrafter(OTHER)))
    oracles = [begin(PlainDrafter(model)) for model in (MODEL, OTHER)]
    for tree in forest:
        for oracle in oracles:
            oracle.texts = texts
        drafts, parts = merged.propose(tree, draws()), [oracle.propose(tree, draws()) for oracle in oracles]
        for draft, *others in zip(drafts, *parts, strict=True):
            assert paths(draft) == set().union(*map(paths, others))
        texts = go_on(rng, [merged], drafts, texts)
        for drafter in merged.drafters:
            assert_cache_is_a_fresh_prefill(drafter, texts)


@given(st.lists(trees(8), min_size=1, max_size=3), SEEDS)
def test_merged_siblings_are_ranked_as_the_first_drafter_that_has_them_ranks_them(forest, seed):
    generator = torch.Generator().manual_seed(seed)

    def drafted(tree):
        tokens = torch.zeros(tree.size, dtype=torch.long)
        for node in range(tree.size):
            children = list(tree.children(node))
            tokens[children] = 1 + torch.randperm(9, generator=generator)[: len(children)]
        return Draft(tree, tokens, "top_k")

    drafts = [drafted(tree) for tree in forest]
    merged = merge_chosen(drafts)
    for node in range(merged.tree.size):
        path, children = merged.tokens_of(merged.tree.path(node)[1:]), []
        for draft in drafts:
            nodes = [ROOT, *draft.along(path)]
            if len(nodes) == len(path) + 1:
                children += draft.tokens_of(draft.tree.children(nodes[-1]))
        assert merged.tokens_of(merged.tree.children(node)) == list(dict.fromkeys(children))


# --------------------------------------------------------------------------------------------------------------- choice


def test_by_speed_each_is_tried_the_fastest_is_kept_and_a_change_is_noticed():
    class Seconds:
        """A clock on which the first drafter's rounds take a hundred seconds until round 60, then one."""
        now = 0.0

        def __call__(self):
            return self.now

    clock = Seconds()
    drafter = begin(ChoosingDrafter(LookupDrafter(), NoDrafter(), by="speed", clock=clock))
    chosen = []
    for number in range(120):
        drafts = drafter.propose(shapes.chain(2), None)
        chosen.append(drafter.active)
        clock.now += 10.0 if drafter.active else 100.0 if number < 60 else 1.0
        drafter.commit([[] for _ in drafts], [1] * len(drafts))
    assert chosen[:2] == [0, 1] and sum(chosen[:60]) > 50, "the second is faster, the first is tried now and then"
    assert 0 in chosen[2 : 2 + choosing.IDLE + 1] and not any(chosen[60 + 2 * choosing.IDLE :][:10])


def test_by_length_the_last_drafter_takes_over():
    drafter = ChoosingDrafter(LanguageModelDrafter(MODEL), SuffixAutomatonDrafter(), by=14)
    done = decode(drafter, shape="chain:3", rows=1)
    assert done.new_tokens == continuations()
    lengths = {record: len(PROMPTS[record.row]) + record.position for record in done.rounds}
    assert all((record.draft_calls > 0) == (length <= 14) for record, length in lengths.items())
    among = made("choosing:speed")
    assert [one.model for one in among.drafters] == [OTHER, MODEL] and parse("choosing:12")[1] == {"by": "12"}
    with pytest.raises(ValueError, match="by is 'luck'"):
        make("choosing:luck", PAIR)
    for kind, word in ((ChoosingDrafter, "choose"), (MergedDrafter, "merge")):
        with pytest.raises(ValueError, match=f"1 drafters to {word}"):
            kind(LanguageModelDrafter(MODEL))


def test_of_drafts_that_are_trees_a_chain_is_kept():
    drafter = FirstBranch(LookupDrafter())
    drafter.start([torch.tensor([1, 5, 6, 1, 5, 7, 1])])
    (draft,) = drafter.propose(shapes.kary(2, 2), None)
    assert draft.tree.is_path and draft.token_list == [1, 5, 7] and drafter.traits == LookupDrafter().traits
    drafter.commit([[1, 2]], [9])
    assert drafter.drafter.texts[0].tokens[-4:] == [1, 5, 7, 9]


# --------------------------------------------------------------------------------------------------- registry, controls


@pytest.mark.parametrize("spec, message", [
    ("random", "missing a required argument: 'generator'"), ("hydra", "'hydra'; choose one of none, model"),
    ("model:3", "proposal is '3'; choose one of top_k, iid"), ("none:3", "none takes no option ''; it takes none"),
    ("sam:", "shortest is a number; give one"), ("sam:x", "drafter is 'sam:x', but .* is a number"),
    ("combined:1.5", "drafter is 'combined:1.5', but .* is a number"),
    ("model:size=8192", "no option 'size'; it takes proposal"), ("model:vocabulary=all", "vocabulary is a number"),
    ("random:generator=3", "generator cannot be written in its name; pass it by keyword"),
    ("medusa", "no head of kind 'medusa' exists for target 'none that ships'.*give the")])
def test_a_spec_that_cannot_be_made_is_refused_by_name(spec, message):
    with pytest.raises(ValueError, match=message):
        make(spec, PAIR)


def test_options_are_read_from_a_drafters_name():
    assert parse("combined:3:vocabulary=8192") == ("combined", {"enough": 3, "vocabulary": 8192})
    assert parse("model:iid:temperature=0.5") == ("model", {"proposal": "iid", "temperature": 0.5})
    assert make("lookup", PAIR, longest=3).longest == make("lookup:3", PAIR).longest == 3
    with pytest.raises(ValueError, match="'lookup' .* unexpected keyword argument 'size'; it takes longest, shortest"):
        make("lookup", PAIR, size=3)
    with pytest.raises(ValueError, match="the pair has no draft model"):
        make("model", SimpleNamespace(target=MODEL, draft_model=None, target_name="t"))


def test_the_oracle_is_accepted_whole_and_random_tokens_hardly_ever():
    best = decode(made("oracle"), shape="chain:5", rows=2)
    assert sorted((record.position, record.accepted) for record in best.rounds) == [(1, 5)] * 5 + [(7, 5)] * 5
    chance = decode(RandomDrafter(small_models.VOCABULARY, torch.Generator().manual_seed(0)), shape="star:3")
    assert sum(record.accepted for record in chance.rounds) < sum(record.drafted for record in chance.rounds) / 3
    with pytest.raises(ValueError, match=r"prompts \[0, 1, 2, 3, 4\]"):
        make("oracle", PAIR, prompts=[], continuations=[], generator=torch.Generator()).start(PROMPTS)
    with pytest.raises(ValueError, match="5 children"):
        begin(RandomDrafter(4, torch.Generator())).propose(shapes.star(5), draws())
