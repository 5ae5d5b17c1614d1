"""Replay by drafting again against live decoding, round by round: grown trees, and drafters that read text alone."""

from dataclasses import replace

import numpy as np
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
from lib.tests.decoding.test_loop import DRAFTER, KINDS, NAMES, PROMPTS, TARGET, decided
from lib.tests.drafters.test_language_model import RULES_OF_GROWTH as RULES
from lib.tests.live import decode
from lib.trees import named

HEADED = small_models.llama(1, layers=3, vocabulary=6)  # of six tokens, what is drafted blindly is accepted at times
RECORDED = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=24)


def texts(written):
    return replay.Texts(NAMES, KINDS, PROMPTS, written, [False] * len(written))


def live_rounds(done):
    return sorted((found.row, found.position - 1, found.drafted, found.accepted, found.open_end)
                  for found in done.rounds)


def replayed_rounds(found):
    return [*zip(*(getattr(found, name).tolist() for name in ("rows", "starts", "drafted", "accepted", "open_end")))]


def same_rounds(recorded, drafter, shape, target=TARGET, rows=16):
    """The rounds by replay, asserted to be those of live decoding, and these."""
    limit = int(recorded.trace.lengths.max())
    done = decode(target, drafter, recorded.prompts, shape=shape, max_new_tokens=limit + 1, rows=rows)
    found = simulated.rounds(recorded, drafter, shape, rows=3)
    assert live_rounds(done) == replayed_rounds(found) and found.accepted.any()
    return found, done.rounds


def headed(kind):
    """A drafter for HEADED, and a trace of texts of which one repeats itself."""
    prompts = [torch.tensor([1, 2, 3, 1, 2, 3, 1]), *small_models.prompts(5, (3, 9, 5), HEADED.config.vocab_size)]
    recorded = replay.record(HEADED, {}, prompts, names=NAMES, kinds=KINDS, max_new_tokens=16)
    drafter = (LanguageModelDrafter(small_models.related(HEADED, 2, 0.1)) if kind == "model" else
               small_heads.DRAFTERS[kind](HEADED, small_heads.head(kind, HEADED)))
    return drafter, Recorded(recorded, prompts)


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_live_rounds_are_the_replayed_ones(rule):
    found, _ = same_rounds(Recorded(RECORDED, PROMPTS), LanguageModelDrafter(DRAFTER), rule)
    assert found.starts.min() == 0 and (found.starts + found.accepted >= 24).any(), "first and last rounds count"


TABLES = NgramTables(({(token,): (token + 1) % 24 for token in range(24)},), 24)
OF_TEXT = {"lookup": LookupDrafter, "sam": SuffixAutomatonDrafter, "ngrams": lambda: NgramDrafter(TABLES)}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", OF_TEXT)
def test_drafters_of_the_text_alone_are_replayed_as_they_decode(kind, temperature):
    """Under naive sampling on the sampled text itself."""
    sampled = dict(temperature=temperature, seed=3) if temperature else {}
    for shape in map(named, ("chain:6", "independent:2x3", "kary:2@14")):
        for new in (1, 2, 5, 24):
            done = decode(TARGET, OF_TEXT[kind](), PROMPTS, shape=shape, max_new_tokens=new + 10, **sampled,
                          rule="naive" if temperature else "greedy")
            made = replay.read(TARGET, {}, texts(done.new_tokens), temperature=temperature)
            made = replace(made, lengths=np.minimum(made.lengths, new))
            found = simulated.rounds(Recorded(made, PROMPTS), OF_TEXT[kind](), shape, rows=3)
            assert [one for one in live_rounds(done) if one[1] < new] == replayed_rounds(found)
    assert found.accepted.any()


@pytest.mark.parametrize("kind", ["model", "eagle3", "medusa", "dspark"])
def test_a_look_up_in_front_of_another_drafter_is_replayed(kind):
    made, source = headed(kind)
    both = CombinedDrafter(SuffixAutomatonDrafter(), made, enough=2)
    for shape in map(named, ("chain:3", "kary:2@6")):
        found, rounds = same_rounds(source, both, shape, HEADED, rows=1)
        calls = {(one.row, one.position - 1): one.draft_calls for one in rounds}
        assert len(set(calls.values())) > 1, "rounds of both"
        if kind != "eagle3":  # whose head also reads what a look-up drafted, in a pass that the round's commit makes
            rounds = zip(found.rows.tolist(), found.starts.tolist())
            assert [calls[row_and_start] for row_and_start in rounds] == list(found.draft_calls)
    read = len(source.states)
    source.forget()
    assert read == (0 if kind == "model" else len(source.prompts)) and not source.states
    assert simulated.replayable(both)
    sampled = LanguageModelDrafter(HEADED, proposal="iid")
    assert not simulated.replayable(sampled) and not simulated.replayable(CombinedDrafter(made, sampled))


def test_draft_calls_are_those_of_a_row_alone():
    rule = named("dyspec@14")
    for row, prompt in enumerate(PROMPTS[:2]):
        done = decode(TARGET, LanguageModelDrafter(DRAFTER), [prompt], shape=rule, max_new_tokens=25)
        found = simulated.rounds(Recorded(RECORDED, PROMPTS), LanguageModelDrafter(DRAFTER), rule)
        assert found.draft_calls[found.rows == row].tolist() == [one.draft_calls for one in done.rounds]


@pytest.mark.parametrize("seed", [0, 1])
def test_naive_sampling_replays_on_its_own_trace(seed):
    rule = named("eagle2:3,4@9")
    drafter = LanguageModelDrafter(DRAFTER, temperature=0.8)
    done = decode(TARGET, drafter, PROMPTS, shape=rule, rule="naive", temperature=0.8, max_new_tokens=20, seed=seed)
    recorded = replay.read(TARGET, {"d": DRAFTER}, texts(done.new_tokens), temperature=0.8)
    chained = simulated.rounds(Recorded(recorded, PROMPTS), drafter, rule)
    assert decided(live_rounds(done), recorded, rule) == replayed_rounds(chained)


def test_eos_ends_a_round_as_it_stands():
    rule = named("dyspec@14")
    full = RECORDED.tokens[1].tolist()
    for eos in sorted(set(full))[:4]:
        done = decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS, shape=rule, max_new_tokens=25, eos_token_id=eos)
        recorded = replay.record(TARGET, {}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=24, eos_token_id=eos)
        chained = simulated.rounds(Recorded(recorded, PROMPTS), LanguageModelDrafter(TARGET), rule)
        assert live_rounds(done) == replayed_rounds(chained)


def test_no_round_counts_where_texts_are_too_short():
    made = replay.read(TARGET, {}, texts([[1], [2, 3], [4], [5]]))
    none = simulated.rounds(Recorded(made, PROMPTS), LanguageModelDrafter(DRAFTER), named("dyspec@8"))
    assert len(none.rows) == 0 and none.open_end.dtype == bool
