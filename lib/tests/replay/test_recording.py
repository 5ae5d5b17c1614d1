"""The prompts of a target become traces, once; the drafters that compete on them are those whose rounds follow from
them.
"""

import copy

import numpy as np
import pytest

from lib.models import Pair
from lib.models.prompts import PromptSet
from lib.replay import recording
from lib.tests import small_models

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = PromptSet(tuple("abcd"), ("k",) * 4, tuple(small_models.prompts(0, (70, 80, 66, 90))))


class Tokenizer:
    eos_token_id, chat_template = None, None


PAIR = Pair("t/d", TARGET, DRAFTER, Tokenizer(), "t", "d")


def test_traces_are_made_once_and_read_again(tmp_path, monkeypatch):
    settings = dict(temperatures=[0.0, 1.0], tokens=6, eos_token_id=None, seed=0, folder=tmp_path)
    competitors = recording.Competitors([PAIR])
    first = recording.record_all("t/1", competitors, PROMPTS, ["a"], **settings)
    assert [one.trace.about["temperature"] for one in first] == [0.0, 1.0]
    choosing, judged = first[1].halves()
    assert choosing.trace.prompts == ("a",) and judged.trace.prompts == tuple("bcd")
    assert [len(ids) for ids in judged.prompts] == [80, 66, 90]
    monkeypatch.setattr(recording, "record_batch", lambda *arguments: pytest.fail("a model is run a second time"))
    second = recording.record_all("t/1", competitors, PROMPTS, ["a"], **settings)
    for one, other in zip(first, second):
        assert np.array_equal(one.trace.probs["d"], other.trace.probs["d"])
        assert one.trace.about == other.trace.about


def test_competitors_are_the_models_of_the_pairs_or_the_named_drafters():
    assert recording.Competitors([PAIR]) == {"d": DRAFTER}
    assert list(recording.Competitors([PAIR], ["sam", "model"])) == ["sam", "d"]
    with pytest.raises(ValueError, match="drafter 'adaptive' depends on more than the text.*notebook 5"):
        recording.Competitors([PAIR], ["model", "adaptive"])
    with pytest.raises(ValueError, match="drafters are sam, of which none has ranks; add"):
        recording.Competitors([PAIR], ["sam"])
    alone = recording.Competitors([Pair("t", TARGET, None, Tokenizer(), "t", "none")])
    assert list(alone.of_ranks) == ["ngrams"] and {*alone} >= {"ngrams", "lookup", "sam"}


def test_a_drafter_whose_window_a_text_outgrows_is_left_out(capsys):
    """A study goes on without it and says why; a recording that names it is refused."""
    short = small_models.related(TARGET, 2, noise=0.3)
    short.config = copy.deepcopy(short.config)
    short.config.max_position_embeddings = 100
    pairs = [PAIR, Pair("t/s", TARGET, short, Tokenizer(), "t", "s")]
    assert list(recording.Competitors(pairs, longest=100)) == ["d", "s"]
    assert list(recording.Competitors(pairs, longest=101)) == ["d"]
    assert "s is left out: prompt and new tokens need 101 positions" in capsys.readouterr().out
    with pytest.raises(ValueError, match="103 positions, but the window of s has 100"):
        recording.record(TARGET, {"s": short}, PROMPTS.ids, names=PROMPTS.names, kinds=PROMPTS.kinds, max_new_tokens=8,
                         beyond=5)
