"""A drafter that chooses among others, and bounds of an adaptive length."""

import pytest
import torch

from lib.decoding.loop import continuations, generate
from lib.drafters import choosing
from lib.drafters.adaptive import AdaptiveDrafter, Bounded, Schedule
from lib.drafters.choosing import ChoosingDrafter
from lib.drafters.drafter import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.drafters.registry import make, parse
from lib.models.load import Pair
from lib.tests.small_models import llama, prompts, related

TARGET = llama(0)


def run(drafter, texts, new=40):
    """The greedy text of prompts of one length, and the drafters that were active."""
    seen = []
    done = generate(TARGET, drafter, torch.stack(texts), shape="chain:3", max_new_tokens=new,
                    observe=lambda *_: seen.append(drafter.active))
    return done, seen


def test_the_faster_drafter_is_chosen_and_the_other_tried_again(monkeypatch):
    """Both follow the text whoever drafts; a clock makes the model's rounds ten times as long."""
    monkeypatch.setattr(choosing, "AGAIN", 5)
    time, texts = [0.0], prompts(1, (9, 9))
    model = LanguageModelDrafter(related(TARGET, 1, 0.1))
    drafter = ChoosingDrafter([LookupDrafter(), model], clock=lambda: time[0])

    def propose(shape, draws, own=model.propose):
        time[0] += 10.0
        return own(shape, draws)

    model.propose = propose
    own_commit = drafter.commit
    drafter.commit = lambda *given: (time.__setitem__(0, time[0] + 1.0), own_commit(*given))
    done, seen = run(drafter, texts)
    assert done.new_tokens == continuations(TARGET, texts, max_new_tokens=40)
    assert seen[:3] == [0, 1, 0] and 0 < seen[2:].count(1) < len(seen) / 4 and drafter.speeds[0] > drafter.speeds[1]


def test_the_length_of_the_text_decides():
    texts = prompts(2, (9,))
    drafter = ChoosingDrafter([LookupDrafter(), NoDrafter()], by=20)
    done, seen = run(drafter, texts)
    assert done.new_tokens == continuations(TARGET, texts, max_new_tokens=40)
    assert seen == sorted(seen) and set(seen) == {0, 1}
    assert all(one.drafted == 0 for one in done.rounds if 9 + one.position > 24)


def test_they_are_made_by_name():
    pair = Pair("t|d", TARGET, related(TARGET, 1, 0.1), None, "t", "d")
    drafter = make("choosing:30:among=lookup+model", pair)
    assert [type(one) for one in drafter.drafters] == [LookupDrafter, LanguageModelDrafter] and drafter.by == 30
    for spec in ("adaptive:schedule:least=2,most=8", "adaptive:schedule:least=2:most=8"):
        assert parse(spec)[1] == {"policy": "schedule", "least": 2, "most": 8}
    assert make(spec, pair).policy == Bounded(Schedule(), 2, 8)
    for wrong, told in (("choosing:among=sam", "two or more"), ("choosing:0", "by is 0"),
                        ("adaptive:schedule:least=5:most=2", "least is 5 and most 2")):
        with pytest.raises(ValueError, match=told):
            make(wrong, pair)


def test_a_bounded_length_stays_within():
    drafter = AdaptiveDrafter(LanguageModelDrafter(related(TARGET, 1, 0.1)), Bounded(Schedule(first=9), 2, 4))
    depths = []
    texts = prompts(3, (8,))
    done = generate(TARGET, drafter, torch.stack(texts), shape="chain:12", max_new_tokens=40,
                    observe=lambda _, drafts, __: depths.append(drafts[0].tree.max_depth))
    assert done.new_tokens == continuations(TARGET, texts, max_new_tokens=40)
    assert depths[0] == 4 and set(depths) <= {2, 3, 4}
