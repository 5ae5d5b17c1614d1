"""Choice while running: policies against their formulas, adaptive and combined drafters against the plain oracle."""

import math
import random
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters import make
from lib.drafters.adaptive import (
    POLICIES,
    AdaptiveDrafter,
    Complexity,
    ConfidentDrafter,
    Outcome,
    Policy,
    Schedule,
    WhereItPays,
    best_length,
    even_costs,
    first_levels,
    path_entropy,
    tokens_of_chains,
)
from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import levels_of
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.plain import PlainDrafter
from lib.drafters.text_drafters import SuffixAutomatonDrafter
from lib.tests import live
from lib.tests.drafters.test_drafters import (
    MODEL,
    OTHER,
    PAIR,
    PROMPTS,
    assert_cache_is_a_fresh_prefill,
    begin,
    go_on,
)
from lib.tests.replay.test_replay import trees
from lib.trees import named, shapes
from lib.verify import warp

SEEDS = st.integers(0, 2**32 - 1)
OUTCOMES = st.lists(st.builds(lambda drafted, share, nats: Outcome(drafted, round(share * drafted), nats),
                              st.integers(1, 9), st.floats(0, 1), st.floats(0, 4) | st.just(math.nan)), max_size=12)


# --------------------------------------------------------------------------------------------------------- policies


def depth_for(policy, history):
    """The depth that a policy chooses after a history of rounds."""
    return policy.depths([reduce(policy.after, history, policy.begin())])[0]


@given(st.sampled_from(sorted(POLICIES)), OUTCOMES)
def test_every_policy_drafts_something_whatever_happened(name, history):
    depth = depth_for(POLICIES[name](), history)
    assert isinstance(depth, int) and depth >= (0 if name == "pays" else 1)


def test_drafting_stops_where_it_does_not_pay_and_is_tried_again():
    policy = WhereItPays(costs=even_costs(0.4))
    state = policy.begin()
    assert policy.depths([state]) > [0]
    for _ in range(4):
        state = policy.after(state, Outcome(*policy.depths([state]), 0))
    assert policy.depths([state]) == [0]
    idle = 0
    while policy.depths([state]) == [0]:
        state, idle = policy.after(state, Outcome(0, 0)), idle + 1
    assert 5 <= idle <= 100
    assert depth_for(policy, [Outcome(4, 4)] * 8) > 4


def test_an_expensive_drafter_is_used_where_all_its_tokens_are_accepted():
    """A level costs more than it gains at the prior's acceptance, so that only trying it shows its gain."""
    policy, rng = WhereItPays(costs=even_costs(0.7, once=0.1)), random.Random(0)
    state, drafted = policy.begin(), 0
    for _ in range(200):
        (depth,) = policy.depths([state])
        accepted = next((n for n in range(depth) if rng.random() >= 0.97), depth)
        state, drafted = policy.after(state, Outcome(depth, accepted)), drafted + depth
    assert drafted > 200


@settings(deadline=None)
@given(st.lists(OUTCOMES, min_size=1, max_size=4), st.floats(0.05, 0.8), st.floats(0, 0.5))
def test_a_batch_drafts_the_length_that_is_best_for_all_its_rows(histories, each, once):
    policy = WhereItPays(costs=even_costs(each, once, most=6))
    states = [reduce(policy.after, history, policy.begin()) for history in histories]
    depths = policy.depths(states)
    assert len(set(depths)) == 1, "a narrower row would be padded to the widest"
    speeds = [sum(tokens_of_chains(policy.acceptance(state), length)[-1] for state in states) / cost
              for length, cost in enumerate(policy.costs)]
    assert math.isclose(speeds[depths[0]], max(speeds)) or depths[0] == 1 and max(speeds) == speeds[0]
    assert policy.depths(states * 2) == depths * 2


def test_one_row_that_goes_well_does_not_make_others_pay_for_what_they_reject():
    policy = WhereItPays(costs=even_costs(0.5, once=0.2))
    taken, refused = (reduce(policy.after, [Outcome(4, accepted)] * 9, policy.begin()) for accepted in (4, 0))
    assert policy.depths([taken])[0] > 0 and policy.depths([taken, taken, taken, refused])[0] > 0
    assert policy.depths([taken, refused, refused, refused]) == [0] * 4


def test_a_draft_that_most_rows_lack_is_not_verified():
    """Look-up found something for one row of four: the others would pay for its columns."""
    policy = WhereItPays(costs=even_costs(0.3))
    states = [reduce(policy.after, [Outcome(2, 2)] * 5, policy.begin())] * 4
    assert policy.depths(states)[0] >= 2 and policy.depths(states, [2, 2, 2, 2]) == [2] * 4
    assert policy.depths(states, [2, 0, 0, 0]) == policy.depths(states, [0] * 4) == [0] * 4


@given(st.lists(st.floats(0, 1), max_size=12))
def test_the_schedule_is_transformers(shares):
    """Where a round drafts as deep as the schedule says."""
    policy, depth = Schedule(), 5
    state = policy.begin()
    for share in shares:
        assert policy.depths([state]) == [depth]
        accepted = round(share * depth)
        state = policy.after(state, Outcome(depth, accepted))
        depth = depth + 2 if accepted == depth else max(1, depth - 1)


@given(st.integers(1, 9), st.integers(0, 30))
def test_levels_that_a_shape_has_not_are_not_saved_up(levels, rounds):
    """However long all went well in a shape, a few rounds that did not bring shallower drafts."""
    policy = Schedule()
    state = policy.begin()
    for _ in range(rounds):
        drafted = min(levels, *policy.depths([state]))
        state = policy.after(state, Outcome(drafted, drafted))
    after = reduce(policy.after, [Outcome(levels, 0)] * 5, state)
    assert policy.depths([after])[0] <= max(1, levels - 2)
    assert policy.after(state, Outcome(0, 0)) == state, "without a draft nothing is learned"


@settings(deadline=None)
@given(st.floats(0, 0.99), st.floats(0.01, 1))
def test_the_best_length_is_leviathans(acceptance, cost):
    lengths = np.arange(1, 17)
    speedup = (1 - acceptance ** (lengths + 1)) / ((1 - acceptance) * (lengths * cost + 1))
    assert math.isclose(speedup[best_length(acceptance, cost, 16) - 1], speedup.max(), rel_tol=1e-9)


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.9])
def test_recent_acceptance_finds_the_acceptance_and_forgets_it(acceptance):
    policy, rng, state = WhereItPays(memory=0.99), random.Random(0), (0.0, 0.0, False)
    for _ in range(600):
        accepted = next((n for n in range(8) if rng.random() >= acceptance), 8)
        state = policy.after(state, Outcome(8, accepted))
    assert abs(policy.acceptance(state) - acceptance) < 0.06
    for _ in range(600):
        state = policy.after(state, Outcome(8, 0))
    assert policy.acceptance(state) < 0.03 and policy.depths([state]) == [0]


def test_complex_text_is_drafted_less_deep():
    depths = [depth_for(Complexity(), [Outcome(4, 2, nats)] * 5) for nats in (0.0, 0.2, 1.0, 2.0, 5.0)]
    assert depths == sorted(depths, reverse=True) and depths[0] == 16 and depths[-1] == 1
    assert depth_for(Complexity(), [Outcome(4, 2)]) == depth_for(Complexity(), [])


def test_entropy_is_that_of_the_path():
    logits = torch.tensor([[0.0, 0.0], [5.0, -math.inf], [1.0, 2.0]])
    assert math.isclose(path_entropy(logits, [1]), math.log(2) / 2)


# ------------------------------------------------------------------------------------------------------ first levels


@given(trees(12), st.integers(0, 5))
def test_first_levels_keep_the_choices_that_are_no_deeper(tree, depth):
    cut_tree, kept = levels_of(tree, depth)
    choices = [(), *tree.choices()]
    assert [(), *cut_tree.choices()] == [choices[node] for node in kept]
    assert sorted(cut_tree.choices()) == sorted(choice for choice in tree.choices() if len(choice) <= depth)


@settings(deadline=None, max_examples=15)
@given(trees(10), st.integers(0, 3), SEEDS)
def test_a_cut_draft_is_the_draft_of_the_cut_shape(tree, depth, seed):
    drafter = begin(LanguageModelDrafter(MODEL))
    drafter.ask_probs(True)
    for whole, small in zip(drafter.propose(tree, None), drafter.propose(levels_of(tree, depth)[0], None)):
        found, _ = first_levels(whole, depth)
        assert found.tree == small.tree and torch.equal(found.tokens, small.tokens)


# -------------------------------------------------------------------------------------------------- adaptive drafters


class Arbitrary(Policy):
    """A policy of arbitrary depths."""

    reads_entropy = True

    def begin(self):
        return 1

    def after(self, state, outcome):
        return (5 * state + outcome.accepted + 3) % 7 + 1

    def depth(self, state):
        return state % 5


@settings(deadline=None, max_examples=15)
@given(st.lists(trees(10), min_size=2, max_size=4), SEEDS, st.sampled_from(["arbitrary", "confident"]))
def test_rows_of_different_depths_stay_with_their_texts(forest, seed, kind):
    rng = random.Random(seed)
    drafter = (ConfidentDrafter(MODEL, threshold=0.3) if kind == "confident"
               else AdaptiveDrafter(LanguageModelDrafter(MODEL), Arbitrary()))
    inner = getattr(drafter, "drafter", drafter)
    begin(drafter)
    oracle, rows = begin(PlainDrafter(MODEL)), len(PROMPTS)
    for shape in forest:
        drafts, whole = drafter.propose(shape, None), oracle.propose(shape, None)
        for draft, full in zip(drafts, whole, strict=True):
            expected, _ = first_levels(full, draft.tree.max_depth)
            assert draft.tree == expected.tree and torch.equal(draft.tokens, expected.tokens)
        oracle.texts = go_on(rng, [drafter], drafts, oracle.texts)
        assert_cache_is_a_fresh_prefill(inner, oracle.texts)
        if rows > 2:
            staying = sorted(rng.sample(range(rows), rows - 1))
            rows -= 1
            drafter.select(staying)
            oracle.select(staying)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 1.0])
def test_a_confident_chain_ends_with_its_first_unlikely_token(threshold):
    drafter, oracle = begin(ConfidentDrafter(MODEL, threshold=threshold)), PlainDrafter(MODEL)
    before = drafter.calls
    drafts = drafter.propose(shapes.chain(6), None)
    for draft, prompt, root in zip(drafts, PROMPTS, (1, 2, 3, 4)):
        text, depth = prompt.tolist() + [root], 0
        while depth < 6:
            probs = warp(oracle.logits(text), 1.0)
            text.append(int(probs.argmax()))
            depth += 1
            if probs.max() < threshold:
                break
        assert draft.tokens.tolist() == text[len(prompt):] and draft.tree.max_depth == depth
    assert drafter.calls - before == max(draft.tree.max_depth for draft in drafts)


def test_an_adaptive_drafter_spends_fewer_forwards_where_little_is_accepted():
    settings = dict(shape="chain:8", max_new_tokens=24)
    fixed, adaptive = LanguageModelDrafter(OTHER), make("adaptive:pays", PAIR)
    outputs = [live.decode(MODEL, drafter, PROMPTS, **settings).new_tokens for drafter in (fixed, adaptive)]
    assert outputs[0] == outputs[1] and adaptive.calls < fixed.calls
    with pytest.raises(ValueError, match="policy is 'blind'; choose one of schedule"):
        make("adaptive:blind", PAIR)
    with pytest.raises(ValueError, match="threshold is 1.5"):
        ConfidentDrafter(OTHER, threshold=1.5)
    for name in ("adaptive", "confident"):
        with pytest.raises(ValueError, match="'dyspec:4@8' decides itself"):
            begin(make(name, PAIR)).propose(named("dyspec:4@8"), None)


# ---------------------------------------------------------------------------------------------------------- combined


def check_beside_look_up(drafter, seed, shape, looked_up, check):
    """Rounds of a drafter with a look-up in front of a model, which stay with their texts.

    check(draft, own, found, matched): of the same texts the draft, the plain oracle's, the look-up's of the shape
    `looked_up`, and the length of its match.
    """
    rng = random.Random(seed)
    prompts = [torch.tensor([rng.randrange(1, 4) for _ in range(length)]) for length in (12, 3, 7)]
    drafter.start(prompts)
    texts = [prompt.tolist() + [1] for prompt in prompts]
    drafter.commit([[]] * 3, [1] * 3)
    for _ in range(4):
        alone, oracle = SuffixAutomatonDrafter(), PlainDrafter(MODEL)
        alone.start([torch.tensor(text) for text in texts])
        oracle.texts = texts
        drafts, calls = drafter.propose(shape, None), drafter.calls
        sources = oracle.propose(shape, None), alone.propose(looked_up, None), alone.matched()
        for draft, *others in zip(drafts, *sources, strict=True):
            check(draft, *others)
        texts = go_on(rng, [drafter], drafts, texts, tokens=4)
        assert drafter.calls == calls and [text.tokens for text in drafter.lookup.texts] == texts
        assert_cache_is_a_fresh_prefill(drafter.drafter, texts)


@settings(deadline=None, max_examples=6)
@given(SEEDS, st.integers(1, 4))
def test_combined_rows_take_the_match_or_the_model_and_stay_with_their_texts(seed, enough):
    def check(draft, own, found, matched):
        expected = found if matched >= enough and found.tree.budget else own
        assert draft.tree == expected.tree and torch.equal(draft.tokens, expected.tokens)

    drafter, shape = CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), enough), shapes.kary(2, 3)
    check_beside_look_up(drafter, seed, shape, shape, check)


def test_long_matches_cost_no_forward():
    drafter = CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), 3)
    drafter.start([torch.tensor([1, 2, 3, 4, 5, 1, 2, 3])])
    drafter.commit([[]], [4])
    calls = drafter.calls
    (draft,) = drafter.propose(shapes.chain(2), None)
    assert draft.tokens.tolist() == [4, 5, 1] and drafter.calls == calls
    drafter.commit([[1]], [9])
    (draft,) = drafter.propose(shapes.chain(2), None)
    assert drafter.calls == calls + 2
    with pytest.raises(ValueError, match="a match of 0 tokens"):
        CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(MODEL), 0)
