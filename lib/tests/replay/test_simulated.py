"""Replay by drafting again against live decoding, beside the contract of drafters: growth, sampled text, look-ups."""

import pytest
import torch

from lib import replay
from lib.drafters.combined import CombinedDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter, NgramDrafter, SuffixAutomatonDrafter
from lib.drafters.text_index import NgramTables
from lib.replay import simulated
from lib.replay.simulated import Recorded
from lib.tests import small_heads, small_models
from lib.tests.decoding.test_loop import DRAFTER, KINDS, NAMES, PROMPTS, TARGET
from lib.tests.drafters.test_language_model import RULES_OF_GROWTH as RULES
from lib.tests.live import decode, live_rounds, replayed_rounds
from lib.trees import named

HEADED = small_models.llama(1, layers=3, vocabulary=6)  # of six tokens, what is drafted blindly is accepted at times
RECORDED = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=24)


def texts(written):
    return replay.Texts(NAMES, KINDS, PROMPTS, written, [False] * len(written))


def decided(rounds, trace, tree):
    """The rounds that the trace is long enough for."""
    return [record for record in rounds if record[1] < trace.starts(tree.max_depth)[record[0]]]


def same_rounds(recorded, drafter, shape, target=TARGET):
    """The rounds by replay, asserted to be those of live decoding of each row alone, and their draft calls live."""
    limit = int(recorded.trace.lengths.max())
    done = decode(target, drafter, recorded.prompts, shape=shape, max_new_tokens=limit + 1, rows=1)
    found = simulated.rounds(recorded, drafter, shape, rows=3)
    assert live_rounds(done) == replayed_rounds(found) and found.accepted.any()
    return found, [one.draft_calls for one in sorted(done.rounds, key=lambda one: (one.row, one.position))]


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_live_rounds_are_the_replayed_ones(rule):
    found, calls = same_rounds(Recorded(RECORDED, PROMPTS), LanguageModelDrafter(DRAFTER), rule)
    assert found.starts.min() == 0 and (found.starts + found.accepted >= 24).any(), "first and last rounds count"
    assert found.draft_calls.tolist() == calls


@pytest.mark.parametrize("make, shape", [
    (lambda: LanguageModelDrafter(DRAFTER), "kary:2@14"), (LookupDrafter, "kary:2@14"),
    (SuffixAutomatonDrafter, "independent:2x3"),
    (lambda: NgramDrafter(NgramTables(({(token,): (token + 1) % 24 for token in range(24)},), 24)), "chain:6"),
    (lambda: LanguageModelDrafter(DRAFTER, temperature=0.8), "eagle2:3,4@9")])
def test_naive_sampling_replays_on_its_own_trace(make, shape):
    done = decode(TARGET, make(), PROMPTS, shape=shape, rule="naive", temperature=0.8, max_new_tokens=30)
    recorded = replay.read(TARGET, {}, texts(done.new_tokens), temperature=0.8)
    found = simulated.rounds(Recorded(recorded, PROMPTS), make(), named(shape), rows=3)
    assert decided(live_rounds(done), recorded, named(shape)) == replayed_rounds(found)


@pytest.mark.parametrize("kind", ["model", "eagle3", "medusa", "dspark"])
def test_a_look_up_in_front_of_another_drafter_is_replayed(kind):
    prompts = [torch.tensor([1, 2, 3, 1, 2, 3, 1]), *small_models.prompts(5, (3, 9, 5), HEADED.config.vocab_size)]
    source = Recorded(replay.record(HEADED, {}, prompts, names=NAMES, kinds=KINDS, max_new_tokens=16), prompts)
    drafter = (LanguageModelDrafter(small_models.related(HEADED, 2, 0.1)) if kind == "model" else
               small_heads.DRAFTERS[kind](HEADED, small_heads.head(kind, HEADED)))
    both = CombinedDrafter(SuffixAutomatonDrafter(), drafter, enough=2)
    for shape in map(named, ("chain:3", "kary:2@6")):
        found, calls = same_rounds(source, both, shape, HEADED)
        assert len(set(calls)) > 1, "rounds of both"
        # EAGLE-3's head also reads what a look-up drafted, in a pass that the round's commit makes.
        assert kind == "eagle3" or found.draft_calls.tolist() == calls
    assert len(source.states) == (0 if kind == "model" else len(prompts))
    sampled = LanguageModelDrafter(HEADED, proposal="iid")
    assert simulated.replayable(both)
    assert not simulated.replayable(sampled) and not simulated.replayable(CombinedDrafter(drafter, sampled))


def test_eos_ends_a_round_as_it_stands():
    rule = named("dyspec@14")
    for eos in sorted(set(RECORDED.tokens[1].tolist()))[:4]:
        done = decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS, shape=rule, max_new_tokens=25, eos_token_id=eos)
        recorded = replay.record(TARGET, {}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=24, eos_token_id=eos)
        found = simulated.rounds(Recorded(recorded, PROMPTS), LanguageModelDrafter(TARGET), rule)
        assert live_rounds(done) == replayed_rounds(found)


def test_no_round_counts_where_texts_are_too_short():
    made = replay.read(TARGET, {}, texts([[1], [2, 3], [4], [5]]))
    none = simulated.rounds(Recorded(made, PROMPTS), LanguageModelDrafter(DRAFTER), named("dyspec@8"))
    assert len(none.rows) == 0 and none.rows.dtype == none.draft_calls.dtype == "int64"


@pytest.mark.parametrize("shape", ["chain:5", "kary:2@14", "independent:2x3"])
@pytest.mark.parametrize("enough", [1, 2, 4])
def test_ranks_of_the_drafter_behind_a_lookup_give_the_rounds_of_drafting_again(shape, enough):
    recorded = Recorded(RECORDED, PROMPTS)
    combined = CombinedDrafter(SuffixAutomatonDrafter(), LanguageModelDrafter(DRAFTER), enough)
    again = simulated.rounds(recorded, combined, named(shape), rows=1)
    by_ranks = simulated.rounds_behind(recorded, combined, named(shape), "d")
    assert replayed_rounds(by_ranks) == replayed_rounds(again)
    long = again.draft_calls == 0
    assert (by_ranks.draft_calls[~long] == named(shape).max_depth).all() and not by_ranks.draft_calls[long].any()
    assert long.any() or enough == 4
