"""The rounds explorer without a browser: a control is moved, and what is shown must follow."""

from threading import Event, Thread
from time import sleep
from types import SimpleNamespace

import pytest

from lib.drafters.language_model import LanguageModelDrafter
from lib.explorers import rounds_explorer
from lib.explorers.rounds_explorer import MOST_NODES, RoundsExplorer
from lib.tests import small_models
from lib.tests.letters import Letters

KINDS = ("story", "story", "code")
PROMPTS = SimpleNamespace(names=("p0", "p1", "p2"), kinds=KINDS, ids=tuple(small_models.prompts(5, (6, 9, 7))))


def explorer_of(*pairs, **settings) -> RoundsExplorer:
    return RoundsExplorer(pairs, PROMPTS, **{"shape": "kary:2@6", "new_tokens": 12} | settings)


@pytest.fixture(scope="module")
def pairs():
    target = small_models.llama(0)
    return [SimpleNamespace(name=f"t/{name}", target_name="t", target=target, tokenizer=Letters(), eos_token_ids=(),
                            draft_model=small_models.related(target, 1, noise))
            for name, noise in (("near", 0.1), ("far", 2.0))]


@pytest.fixture
def rounds(pairs):
    return explorer_of(*pairs, acceptance_by_rank=[0.6, 0.2, 0.1])


def test_the_slider_leads_to_each_round(rounds):
    assert rounds.round.max == len(rounds.steps) == rounds.timeline.value.count("title=") > 2
    pictures, timelines = set(), set()
    for step in rounds.steps:
        rounds.round.value = step.number
        assert f"Round {step.number} of {len(rounds.steps)}" in rounds.numbers.value
        pictures.add(rounds.picture.value)
        timelines.add(rounds.timeline.value)
    assert len(pictures) == len(timelines) == len(rounds.steps)


@pytest.mark.parametrize(("control", "value"), [
    ("pair", "t/far"), ("prompt", 2), ("shape", "chain:3"), ("shape", "optimal@5"), ("shape", "dyspec@6"),
    ("drafter", "lookup"), ("temperature", 1.0), ("new_tokens", 5)])
def test_every_control_decodes_anew_and_shows_the_first_round(rounds, control, value):
    rounds.round.value = 2
    before = rounds.steps
    getattr(rounds, control).value = value
    assert rounds.steps is not before and rounds.steps != before
    assert (rounds.round.value, rounds.round.max, rounds.message.value) == (1, len(rounds.steps), "")
    assert "Round 1 of" in rounds.numbers.value and rounds.text.value.startswith("<div")
    if value == "dyspec@6":
        assert len({tuple(step.tree.parents) for step in rounds.steps}) > 1, "each round has a tree of its own"


def test_two_settings_decode_the_same_prompt_and_plain_decoding_is_timed_once(rounds):
    plain, rounds.round.value = rounds.plain, 2
    assert f"tokens per second after the first round ({plain:.0f} plainly)" in rounds.numbers.value
    rounds.other_drafter.value, rounds.other_shape.value = "lookup", "chain:3"
    assert rounds.message.value == "" and "beside it" in rounds.timeline.value
    assert rounds.steps[-1].text[-1] == rounds.other[-1].text[-1] and rounds.plain == plain
    rounds.other_shape.value = "none"
    assert not rounds.other and "beside it" not in rounds.timeline.value


def test_a_prompt_can_be_typed(rounds):
    chosen = rounds.steps[0].text[0][0]
    rounds.typed.value = "abcabc"
    assert rounds.message.value == "" and rounds.steps[0].text[0][0] == "abcabc"
    rounds.prompt.value = 1
    assert rounds.typed.value == "" and rounds.steps[0].text[0][0] not in ("abcabc", chosen)
    rounds.typed.value, rounds.prompt.value = "abcabc", 0
    assert rounds.steps[0].text[0][0] == chosen


@pytest.mark.parametrize(("control", "value", "says"), [
    ("shape", "kary:two@4", "cannot be read"), ("shape", "kary:4,4", f"at most {MOST_NODES}"),
    ("new_tokens", 600, "new tokens"), ("drafter", "crystal", "choose one of")])
def test_what_is_wrong_is_said_and_what_was_shown_stays(rounds, control, value, says):
    steps, picture = rounds.steps, rounds.picture.value
    getattr(rounds, control).value = value
    assert says in rounds.message.value and "last decoding that worked" in rounds.message.value
    assert rounds.steps is steps and rounds.picture.value == picture


def test_rules_take_the_children_that_they_were_made_for(rounds):
    rounds.temperature.value = 1.0
    assert rounds.rule.value == "naive" and not {"typical", "greedy"} & {*rounds.rule.options}
    for rule in rounds.rule.options:
        rounds.rule.value = rule
        assert (rounds.message.value == "") == (rule != "block"), rounds.message.value  # which is for chains alone
    rounds.drafter.value, rounds.rule.value = "lookup", "multi_step"
    assert "drafts, only for iid; verify with" in rounds.message.value
    rounds.temperature.value = 0.0
    assert rounds.message.value == "", "greedy decoding has one rule"


def test_the_drafters_offered_are_those_of_the_pair(rounds, pairs):
    assert {"model", "lookup", "sam", "combined"} <= set(rounds.drafter.options)
    alone = SimpleNamespace(**vars(pairs[0]) | {"draft_model": None, "target_name": "base"})
    for wanted, taken in (("", "lookup"), ("sam", "sam"), ("small", "lookup")):
        explorer = explorer_of(alone, shape="chain:3", drafter=wanted)
        assert explorer.drafter.value == taken and explorer.message.value == ""
        assert "model" not in explorer.drafter.options


def test_an_error_of_any_kind_is_a_message_and_an_explorer_recovers(pairs, rounds, monkeypatch):
    late = explorer_of(*pairs, shape="optimal@8")
    assert "grown from measurements" in late.message.value and late.shown.layout.display == "none"
    late.shape.value = "chain:2"
    assert late.shown.layout.display is None and late.message.value == ""
    first = Letters.ids(rounds.steps[0].text[1][0])[0]
    ending = SimpleNamespace(**vars(pairs[0]) | {"eos_token_ids": (first,)})
    assert "before any round" in explorer_of(ending).message.value

    def fail(self, prompts):
        raise RuntimeError("out of <memory>")

    monkeypatch.setattr(LanguageModelDrafter, "start", fail)
    rounds.shape.value = "chain:4"
    assert "RuntimeError: out of &lt;memory&gt;" in rounds.message.value


def test_one_setting_is_decoded_at_a_time_and_then_the_newest(rounds, monkeypatch):
    """Three threads change the tree while the first of them still decodes: the second one's tree is never decoded."""
    walk, begun, finish, budgets = rounds_explorer.walk, Event(), Event(), []

    def held_up(pair, drafter, prompt, shape, **settings):
        budgets.append(shape.budget)
        begun.set()
        finish.wait()
        return walk(pair, drafter, prompt, shape, **settings)

    monkeypatch.setattr(rounds_explorer, "walk", held_up)
    threads = [Thread(target=setattr, args=(rounds.shape, "value", f"chain:{length}")) for length in (1, 2, 3)]
    for thread in threads:
        newest = rounds.newest
        thread.start()
        begun.wait()
        while rounds.newest is newest:  # until the thread waits for the lock
            sleep(0.01)
    finish.set()
    for thread in threads:
        thread.join()
    assert budgets == [1, 3] and rounds.message.value == ""
    assert max(step.tree.budget for step in rounds.steps) == 3
