"""What a race decides, against enumeration and arithmetic by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.cost import judging, recommendation, ways
from lib.cost.candidates import Candidate
from lib.cost.recommendation import GENERATE, PLAIN, Interval
from lib.models.prompts import PromptSet

SPEEDS = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(SPEEDS, st.integers(0, 4)), min_size=1, max_size=8))
def test_of_nearly_the_fastest_the_one_with_the_fewest_nodes_is_chosen(ways):
    speeds, nodes = zip(*ways)
    at = judging.choose(speeds, nodes)
    near = [place for place in range(len(ways)) if speeds[place] >= 0.98 * max(speeds)]
    assert at in near and nodes[at] == min(nodes[place] for place in near)
    assert speeds[at] == max(speeds[place] for place in near if nodes[place] == nodes[at])


@pytest.mark.parametrize("over, told", [
    (Interval(0.98, 0.91, 1.05), "they cannot be told apart"), (Interval(0.93, 0.9, 0.99), "no tree pays"),
    (Interval(1.1, 1.02, 1.2), "a tree pays"), (Interval(0.5), "too few to tell them apart")])
def test_a_tree_pays_or_does_not_beyond_the_interval_alone(over, told):
    assert recommendation.about_trees(over) == told


@given(*[st.floats(0.001, 1.0)] * 4)
def test_calls_that_break_even_take_as_long(prefill, per_token, base_prefill, base_per_token):
    tokens = judging.break_even(prefill, per_token, base_prefill, base_per_token)
    own, base = (first + (tokens - 1) * each for first, each in ((prefill, per_token), (base_prefill, base_per_token)))
    if tokens == np.inf:
        assert per_token >= base_per_token
    elif tokens == 1.0:
        assert own <= base and per_token <= base_per_token
    else:
        assert own == pytest.approx(base, rel=1e-6) and prefill > base_prefill


@pytest.mark.parametrize("speedup, whole, stays, told", [
    (Interval(1.5, 1.2, 1.8), Interval(1.2, 1.1, 1.3), True, ""),
    (Interval(1.5, 1.2, 1.8), Interval(1.01), True, ""),
    (Interval(1.5, 1.2, 1.8), Interval(1.01, 0.95, 1.07), True, "gain not shown for answers of 60 tokens: whole calls"),
    (Interval(1.5, 1.2, 1.8), Interval(0.9, 0.8, 0.99), False, "whole calls of a, prefill included, are 0.90 [0.80, "),
    (Interval(1.1), Interval(0.97), False, "whole calls of a, prefill included, are 0.97 times as fast as plain "
     "decoding (n = 9); they break even at answers of 101 tokens (prefill 2e+03 ms against 1e+03, then 10 ms "),
    (Interval(0.9, 0.8, 0.95), Interval(0.9, 0.8, 0.95), False, "a was predicted to decode 1.40 times as fast")])
def test_whole_calls_that_are_slower_give_plain_decoding_and_a_tie_a_length_of_answer(speedup, whole, stays, told):
    found = judging.upheld("a", 1.4, speedup, whole, (2.0, 0.01), (1.0, 0.02), 60.2, 9)
    assert found[0] == stays and found[1].startswith(told) and bool(found[1]) == bool(told)


def log_speed(tokens, rates, half):
    return np.log(tokens[:, half]).mean(1) + np.log(rates)


def test_the_luck_of_choosing_is_what_all_half_splits_give():
    """At batch 1, against every split of four prompts; by simulation the share is that of unseen prompts, or less."""
    rng = np.random.default_rng(0)
    tokens, rates = 1 + rng.random((5, 4)), 0.5 + rng.random(5)
    halves = [np.array(pair) for pair in ((0, 1), (0, 2), (0, 3))]
    logs = []
    for half in halves:
        other = np.setdiff1d(np.arange(4), half)
        for own, judge in ((half, other), (other, half)):
            best = log_speed(tokens, rates, own).argmax()
            logs.append((log_speed(tokens, rates, judge) - log_speed(tokens, rates, own))[best])
    drawn = [np.log(judging.optimism(tokens, rates, "aaaa", 1, np.random.default_rng(seed))) for seed in range(40)]
    assert np.mean(drawn) == pytest.approx(np.mean(logs), abs=4 * np.std(drawn) / 40**0.5)
    assert judging.optimism(tokens[:1], rates[:1], "aaaa", 1, rng) == pytest.approx(1.0), "nothing was chosen"
    assert judging.optimism(tokens[:, :1], rates, "a", 1, rng) == 1.0


@given(st.integers(0, 1000), st.integers(1, 5))
def test_tokens_in_batches_are_means_over_rows_and_geometric_means_over_batches(seed, batch):
    rng, kinds = np.random.default_rng(seed), list("aabbbbaab")
    rounds, accepted = rng.integers(1, 9, (3, 9)), rng.integers(0, 20, (3, 9))
    known = rng.random((3, 9)) < 0.8
    known[:, 0] = True
    names = [f"p{at}" for at in range(9)]
    tried = [Candidate(None, "", None, [names[at] for at in np.flatnonzero(own)], a[own], r[own], np.ones(1))
             for own, a, r in zip(known, accepted, rounds)]
    asked = PromptSet(tuple(names), tuple(kinds), tuple(range(9)))
    for each, own, tokens in zip(tried, known, 1 + accepted / rounds):
        batches = [[tokens[row] for row in rows if own[row]] for _, rows in ways.together(kinds, batch)]
        mean = np.exp(np.mean([np.log(np.mean(part)) for part in batches if part]))
        assert each.tokens_in(asked, batch) == pytest.approx(mean)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_choosing_never_makes_a_prediction_too_low_on_average(seed, batch):
    rng = np.random.default_rng(seed)
    tokens = 1 + rng.random((6, 7))
    assert judging.optimism(tokens, np.ones(6), "aabbbba", batch, rng) <= 1 + 1e-12
    tokens[:5, rng.integers(7, size=5)] = np.nan
    assert 0 < judging.optimism(tokens, np.ones(6), "aabbbba", batch, rng) < 2


def test_a_measured_speedup_is_tokens_per_round_over_the_time_of_rounds():
    rng = np.random.default_rng(3)
    rows = pd.DataFrame([dict(way=way, prompt=f"p{prompt}", repeat=repeat, round_ms=10 * time, rate=100 * tokens / time)
                         for prompt in range(4) for repeat in range(1 + prompt % 2) for way, tokens, time in (
                             (PLAIN, 1, rng.uniform(1, 2)), ("a", rng.uniform(1, 3), rng.uniform(1, 2)))])
    rows.loc[len(rows)] = dict(way=GENERATE, prompt="p0", repeat=0, round_ms=1.0, rate=1.0)
    tokens, time = judging.parts(rows, "a", 1)
    over = judging.measured(rows, "a", PLAIN, rng)
    assert tokens / time == pytest.approx(over.value)
    own = rows[rows["way"] == "a"].assign(tokens=lambda own: np.log(own["rate"] * own["round_ms"] / 1000))
    assert tokens == pytest.approx(np.exp(own.groupby("prompt")["tokens"].mean().mean()))
