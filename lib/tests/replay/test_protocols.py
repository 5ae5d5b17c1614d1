"""Prompts become traces under both protocols, once; drafters compete whose rounds follow from them."""

import numpy as np
import pytest
import torch

from lib.models import Pair
from lib.models.prompts import PromptSet
from lib.replay import acceptance, protocols, recording
from lib.tests import small_models

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
ASKED = PromptSet(tuple("abcd"), ("k",) * 4, tuple(small_models.prompts(0, (70, 80, 66, 90))))


class Tokenizer:
    eos_token_id, chat_template = None, None


class ChatTokenizer(Tokenizer):
    chat_template = "{{ messages }}"


PAIR = Pair("t/d", TARGET, DRAFTER, Tokenizer(), "t", "d")


def test_real_text_starts_are_spread_evenly_over_each_prompt():
    asked = PromptSet(("a", "b"), ("k", "l"), (torch.arange(100), torch.arange(50)))
    begun = protocols.texts_of(asked, acceptance.REAL_TEXT, 3)
    assert [len(ids) for ids in begun.ids] == [64, 82, 100, 50, 50, 50]
    assert begun.names == tuple("aaabbb") and begun.kinds == tuple("kkklll")
    assert protocols.texts_of(asked, acceptance.CONTINUATION, 3) is asked


def test_traces_are_made_once_and_read_again(tmp_path, monkeypatch):
    settings = dict(temperatures=[0.0, 1.0], tokens=6, starts=2, horizon=4, eos_token_id=None, seed=0, folder=tmp_path)
    competitors = protocols.Competitors([PAIR])
    once = protocols.record_all("t/1", competitors, ASKED, ["a"], **settings)
    told = [(one.trace.about["protocol"], one.trace.about["temperature"]) for one in once]
    assert told == [(protocol, heat) for protocol in protocols.of_pair(PAIR) for heat in (0.0, 1.0)]
    choosing, judged = once[2].halves()
    assert choosing.trace.prompts == ("a", "a") and judged.trace.prompts == tuple("bbccdd")
    assert [len(ids) for ids in judged.prompts] == [64, 80, 64, 66, 64, 90]
    monkeypatch.setattr(recording, "record_batch", lambda *given: pytest.fail("a model is asked a second time"))
    again = protocols.record_all("t/1", competitors, ASKED, ["a"], **settings)
    for first, second in zip(once, again):
        assert np.array_equal(first.trace.probs["d"], second.trace.probs["d"])
        assert first.trace.about == second.trace.about


def test_the_drafters_of_a_pair_are_its_models_or_what_is_asked_for():
    assert protocols.of_pair(PAIR) == (acceptance.CONTINUATION, acceptance.REAL_TEXT)
    assert protocols.Competitors([PAIR]) == {"d": DRAFTER}
    assert list(protocols.Competitors([PAIR], ["sam", "model"])) == ["sam", "d"]
    with pytest.raises(ValueError, match="drafter 'recycling' depends on more than the text.*notebook 5"):
        protocols.Competitors([PAIR], ["model", "recycling"])
    with pytest.raises(ValueError, match="drafters are sam, of which none has ranks; add"):
        protocols.Competitors([PAIR], ["sam"])
    alone = protocols.Competitors([Pair("t", TARGET, None, ChatTokenizer(), "t", "none")])
    assert list(alone.of_ranks) == ["ngrams"] and {*alone} >= {"ngrams", "lookup", "sam"}
    assert protocols.of_pair(alone.pairs[0]) == (acceptance.CONTINUATION,), "a chat model has no starts in real text"
