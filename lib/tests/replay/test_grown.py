"""Replay of grown trees against live decoding, round by round; its starts, its bookkeeping, its table rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib import replay
from lib.drafters import make
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.plain import PlainDrafter
from lib.replay import grown
from lib.studies.acceptance import live
from lib.tests import small_heads, small_models
from lib.tests.decoding.test_decoding import DRAFTER, KINDS, NAMES, PROMPTS, TARGET
from lib.tests.drafters.test_growing import NAMES as RULE_NAMES
from lib.tests.drafters.test_growing import RULES
from lib.trees import growth, shapes
from lib.verify import GeneratorDraws

HEADED = small_models.llama(1, layers=3, vocabulary=6)  # of six tokens, what is drafted blindly is accepted at times
RECORDED = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=24)
FIELDS = ("rows", "starts", "accepted", "nodes", "cut", "drafted", "depth", "draft_calls", "open_end")


def columns(found):
    return {name: getattr(found, name).tolist() for name in FIELDS}


def live_rounds(done):
    return sorted((found.row, found.position - 1, found.drafted, found.accepted, found.open_end, found.cut)
                  for found in done.rounds)


def replayed_rounds(found):
    whole = found.cut  # where the text ended, so does what the loop records of the path
    return [*zip(found.rows.tolist(), found.starts.tolist(), found.drafted.tolist(), found.accepted.tolist(),
                 np.where(whole, None, found.open_end).tolist(), whole.tolist())]


def without_ends(rounds):
    return [(*found[:4], None if found[5] else found[4], found[5]) for found in rounds]


@pytest.mark.parametrize("rule", RULES, ids=RULE_NAMES)
def test_live_rounds_are_the_replayed_ones(rule):
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), PROMPTS, shape=rule, max_new_tokens=25)
    drafter = LanguageModelDrafter(DRAFTER)
    chained = grown.chained(RECORDED, drafter, PROMPTS, rule, rows=3)
    assert without_ends(live_rounds(done)) == replayed_rounds(chained)
    assert chained.starts.min() == 0 and chained.cut.any(), "first and last rounds are there"
    everywhere = grown.walk(RECORDED, drafter, PROMPTS, rule, rows=7)
    assert len(everywhere.rows) == RECORDED.positions
    assert columns(replay.chained(everywhere, RECORDED.lengths)) == columns(chained)


@pytest.mark.parametrize("kind, rule", [("eagle", "eagle2:3,4@9"), ("eagle3", "dyspec:5@8"), ("medusa", "ddtree@9"),
                                        ("block", "ddtree@7")])
def test_trees_that_heads_grow_are_replayed_too(kind, rule):
    rule, prompts = growth.parse(rule), small_models.prompts(5, (3, 9, 5, 1), HEADED.config.vocab_size)
    recorded = replay.record(HEADED, {}, prompts, names=NAMES, kinds=KINDS, max_new_tokens=16)
    made = small_heads.DRAFTERS[kind](HEADED, small_heads.head(kind, HEADED))
    done = live.decode(HEADED, made, prompts, shape=rule, max_new_tokens=17)
    chained = grown.chained(recorded, made, prompts, rule, rows=3)
    assert without_ends(live_rounds(done)) == replayed_rounds(chained)
    assert chained.accepted.any() and chained.drafted.max() > 1
    everywhere = grown.walk(recorded, made, prompts, rule, rows=7)
    for name in ("rows", "starts", "accepted", "nodes", "cut", "drafted", "depth"):
        assert np.array_equal(getattr(replay.chained(everywhere, recorded.lengths), name), getattr(chained, name))


def test_draft_calls_are_those_of_a_row_alone():
    rule = growth.parse("dyspec@14")
    for row, prompt in enumerate(PROMPTS[:2]):
        done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), [prompt], shape=rule, max_new_tokens=25)
        found = grown.chained(RECORDED, LanguageModelDrafter(DRAFTER), PROMPTS, rule)
        own = found.select(found.rows == row)
        assert own.draft_calls.tolist() == [one.draft_calls for one in done.rounds]


@pytest.mark.parametrize("seed", [0, 1])
def test_naive_sampling_replays_on_its_own_trace(seed):
    rule = growth.parse("eagle2:3,4@9")
    drafter = LanguageModelDrafter(DRAFTER, temperature=0.8)
    done = live.decode(TARGET, drafter, PROMPTS, shape=rule, rule="naive", temperature=0.8, max_new_tokens=20,
                       generator=torch.Generator().manual_seed(seed))
    recorded = replay.read(TARGET, {"d": DRAFTER}, PROMPTS, done.new_tokens, names=NAMES, kinds=KINDS, temperature=0.8)
    chained = grown.chained(recorded, drafter, PROMPTS, rule)
    assert without_ends(live_rounds(done)) == replayed_rounds(chained)


def test_eos_cuts_the_round_that_it_ends():
    rule = growth.parse("dyspec@14")
    full = RECORDED.tokens[1].tolist()
    for eos in sorted(set(full))[:4]:
        done = live.decode(TARGET, LanguageModelDrafter(TARGET), PROMPTS, shape=rule, max_new_tokens=25,
                           eos_token_id=eos)
        recorded = replay.read(TARGET, {"d": TARGET}, PROMPTS, done.new_tokens, names=NAMES, kinds=KINDS)
        chained = grown.chained(recorded, LanguageModelDrafter(TARGET), PROMPTS, rule)
        assert without_ends(live_rounds(done)) == replayed_rounds(chained)


def test_a_static_shape_replays_as_its_ranks_say():
    tree = shapes.parse("kary:2@6")
    by_ranks = replay.walk(RECORDED, tree, "d")
    drafted = grown.walk(RECORDED, LanguageModelDrafter(DRAFTER), PROMPTS, tree)
    for name in ("rows", "starts", "accepted", "nodes", "cut"):
        assert np.array_equal(getattr(drafted, name), getattr(by_ranks, name))


def test_asked_starts_come_in_their_order_and_as_the_plain_drafter_has_them():
    rule, starts = growth.parse("dyspec@8"), [(2, 5), (0, 0), (2, 1), (3, 23), (2, 5)]
    found = grown.walk(RECORDED, LanguageModelDrafter(DRAFTER), PROMPTS, rule, starts, rows=2)
    assert [*zip(found.rows, found.starts)] == starts
    plain = PlainDrafter(DRAFTER)
    for index, (row, at) in enumerate(starts):
        plain.start([torch.cat([PROMPTS[row], grown.continuation(RECORDED, row)[: at + 1]])])
        (draft,) = plain.propose(rule, GeneratorDraws(None))
        assert (found.drafted[index], found.depth[index]) == (draft.tree.budget, draft.tree.max_depth)
        path = [int(draft.tokens[node]) for node in draft.tree.path(int(found.nodes[index]))[1:]]
        assert path == RECORDED.tokens[row, at + 1 : at + 1 + len(path)].tolist() and len(path) == found.accepted[index]


def test_nothing_asked_and_wrong_prompts():
    none = grown.walk(RECORDED, LanguageModelDrafter(DRAFTER), PROMPTS, growth.parse("dyspec@8"), [])
    assert len(none.rows) == 0 and none.cut.dtype == bool
    with pytest.raises(ValueError, match="3 prompts for a trace of 4 rows"):
        grown.walk(RECORDED, LanguageModelDrafter(DRAFTER), PROMPTS[:3], growth.parse("dyspec@8"))


def test_what_cannot_be_replayed_is_refused_by_name():
    """Counts from the end, starts behind it, and drafters that remember rounds."""
    rule, drafter = growth.parse("dyspec@8"), LanguageModelDrafter(DRAFTER)
    for start in ((0, 24), (4, 0), (0, -1), (-1, 0)):
        with pytest.raises(ValueError, match=rf"start \({start[0]}, {start[1]}\) is not in the trace"):
            grown.walk(RECORDED, drafter, PROMPTS, rule, [(0, 0), start])
    for other in (LookupDrafter(), make("adaptive", SimpleNamespace(target=TARGET, draft_model=DRAFTER))):
        for replayed in (grown.walk, grown.chained):
            with pytest.raises(ValueError, match=f"drafter is a {type(other).__name__}.*decode with others live"):
                replayed(RECORDED, other, PROMPTS, rule)
