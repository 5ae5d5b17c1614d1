"""Conversations that grow, as logs and as prompts: their turns are told apart from other prompts, and stand together
wherever prompts are split or resampled.
"""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.cost import served
from lib.lab import stats
from lib.models import dialogue, load_pair, prompts
from lib.replay import log_lines, logs

PAIR = load_pair("small/tiny-small", dtype="float32")
SYSTEM = {"role": "system", "content": "Answer."}


def said(turns, name):
    """A dialogue of so many turns, the last of them answered."""
    return [SYSTEM] + [{"role": role, "content": f"{role} says {name} {turn}."}
                       for turn in range(turns) for role in ("user", "assistant")]


def as_texts(dialogues):
    return [json.dumps({"id": name, "messages": messages, "temperature": 0}) for name, messages in dialogues]


def as_ids(dialogues):
    for name, (*asked, answer) in dialogues:
        body = {"choices": [{"message": answer, "finish_reason": "length",
                             "token_ids": PAIR.tokenizer(answer["content"])["input_ids"]}],
                "prompt_token_ids": dialogue.tokenise(asked, PAIR.tokenizer).tolist()}
        yield json.dumps({"id": name, "request": {"temperature": 0}, "response": body})


def read(lines, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    return logs.tokenised(log_lines.read(path), PAIR.tokenizer, eos_token_id=0)


@pytest.mark.parametrize("form", [as_texts, as_ids])
def test_answers_of_a_log_that_grows_are_turns(form, tmp_path):
    """In any order, beside others whose first words are the same."""
    dialogues = [("b2", said(2, "b")), ("c", said(1, "c")), ("a1", said(1, "a")), ("b1", said(1, "b")),
                 ("a3", said(3, "a")), ("a2", said(2, "a")), ("d", [SYSTEM, *said(1, "a")[1:2], said(1, "d")[-1]])]
    texts = read(form(dialogues), tmp_path)
    known = ["b1 turn 2", "c", "a1 turn 1", "b1 turn 1", "a1 turn 3", "a1 turn 2", "d"]
    if form is as_ids:  # here the answer that was not gone on with cannot be told from the one that was
        assert {stats.unit(name) for name in texts.names} in ({"a1", "b1", "c", "d"}, {"b1", "c", "d"})
    else:
        assert list(texts.names) == known
    choosing, judging = ({stats.unit(name) for name, is_in in zip(texts.names, part) if is_in}
                         for part in served.halves(texts))
    assert choosing and judging and not choosing & judging


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.integers(1, 2))
def test_a_conversation_is_never_split(lengths, choose):
    names = [f"{at}{stats.TURN}{turn}" if length > 1 else f"{at}"
             for at, length in enumerate(lengths) for turn in range(1, length + 1)]
    parts = prompts.split_rows(names, ["chat"] * len(names), choose, len(lengths) - choose)
    units = [[*dict.fromkeys(stats.unit(names[row]) for row in part)] for part in parts]
    assert units == [[f"{at}" for at in range(choose)], [f"{at}" for at in range(choose, len(lengths))]]
    assert sorted(parts[0] + parts[1]) == list(range(len(names)))


def test_turns_are_resampled_as_one():
    rng, values = np.random.default_rng, np.arange(40.0) % 7
    alone = pd.DataFrame(dict(prompt=[f"p{at // 4}" for at in range(40)], x=values, rounds=1, y=2))
    turns = alone.assign(prompt=[f"p{at // 4}{stats.TURN}{at % 4}" for at in range(40)])
    pd.testing.assert_frame_equal(*(stats.summarise(rows.assign(s=0), ["s"], "x", "y", rng(0))
                                    for rows in (alone, turns)))


def test_each_turn_of_a_conversation_re_reads_all_before(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"question_id": "a", "conversation": said(3, "a")[:-1]}) + "\n"
                    + json.dumps({"messages": said(2, "b")[:-1]}))
    known = prompts.load(path, PAIR.tokenizer)
    assert known.names == ("a turn 1", "a turn 2", "a turn 3", "2")
    for turn in (1, 2, 3):
        assert known.ids[turn - 1].tolist() == dialogue.tokenise(said(turn, "a")[:-1], PAIR.tokenizer).tolist()
    assert prompts.load(path, PAIR.tokenizer, first=1).names == known.names[:3]
