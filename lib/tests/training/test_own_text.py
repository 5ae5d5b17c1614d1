"""Dialogues that a model writes by itself: what is kept of them, that a stopped run continues, and n-grams of them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib.drafters import vocabulary
from lib.drafters.text_drafters import load_tables
from lib.replay.trace import loops
from lib.tests import small_models
from lib.training import loop, ngrams, own_text
from lib.training.own_text import Dialogue

END = 2
MODEL = small_models.llama(3, gain=1.0)  # so flat that a sampled turn ends soon


class Chat:
    """A tokenizer of letters with a chat template; "|" ends a turn."""

    chat_template, eos_token, eos_token_id, bos_token_id = "a template", "|", END, 1

    def apply_chat_template(self, messages, **settings):
        return f"ab{messages[0]['content']}|cde"

    def __call__(self, text):
        return {"input_ids": [ord(letter) - ord("a") + 3 for letter in text]}


PAIR = SimpleNamespace(target=MODEL, tokenizer=Chat(), target_name="t", vocabulary=small_models.VOCABULARY)


@pytest.fixture(autouse=True)
def smaller(monkeypatch, tmp_path):
    for name, value in {"ROWS": 8, "CHUNK": 12, "TURN": 20, "ANSWER": 8, "TEXT": tmp_path / "text"}.items():
        monkeypatch.setattr(own_text, name, value)
    monkeypatch.setattr(vocabulary, "SHIPPED", tmp_path / "models")


def test_the_template_is_the_tokens_around_a_users_turn():
    other = Chat()
    assert own_text.template(other) == ([3, 4], [5, 6, 7])
    other.eos_token = "</s>"
    with pytest.raises(ValueError, match="does not end a user's turn with '</s>'"):
        own_text.template(other)
    other.chat_template = None
    assert own_text.template(other) == ([1], []), "a base model begins with its first token"
    other.bos_token_id = other.eos_token_id = None
    with pytest.raises(ValueError, match="neither a chat template nor a token.*take another model"):
        own_text.template(other)


def test_a_base_model_continues_its_first_token():
    base = SimpleNamespace(chat_template=None, bos_token_id=1, eos_token_id=END)
    written = own_text.chunk(MODEL, base, 0)
    assert written and all(not row.turn and row.temperature == 1 and len(row.answer) <= 28 for row in written)


def test_rows_are_a_turn_that_ended_and_an_answer_of_which_half_are_greedy():
    written = [row for number in range(3) for row in own_text.chunk(MODEL, Chat(), number)]
    assert own_text.chunk(MODEL, Chat(), 1) == own_text.chunk(MODEL, Chat(), 1) != own_text.chunk(MODEL, Chat(), 0)
    for turn, answer, temperature in written:
        assert turn[-1] == END and END not in turn[:-1] and own_text.FEWEST < len(turn) <= own_text.TURN
        assert not loops(turn) and not loops(answer) and temperature in (0, own_text.WARM)
        if temperature == 0:
            prompt = torch.tensor([[3, 4, *turn, 5, 6, 7]])
            greedy = MODEL.generate(prompt, max_new_tokens=own_text.ANSWER, do_sample=False, eos_token_id=END,
                                    pad_token_id=0)[0, prompt.shape[1] :]
            assert greedy.tolist() == answer
    assert 0.2 < np.mean([row.temperature == 0 for row in written]) < 0.8, "loops are dropped more often from greedy answers"


def test_loops_turns_without_an_end_and_repeated_turns_are_dropped(monkeypatch):
    first, second, third = [5, 6, 7, 8, END], [9, 8, 7, 6, 5, END], [9, 8, 7, 6, 5, 4, END]
    turns = [second, [5, 6, END], [5, 6, 7, 8, 9, 10], [8, 9] * 5, third, first]  # too short, without an end, a loop
    script = [turns, [[7] * 9, [8, END]], [[9, END]]]  # greedy answers of the first and third, a sampled one
    monkeypatch.setattr(own_text, "continuations", lambda *arguments, **settings: script.pop(0))
    rows = [Dialogue(third, [8, END], 0.0), Dialogue(second, [9, END], own_text.WARM)]
    assert own_text.chunk(MODEL, Chat(), 0) == rows
    assert own_text.distinct([*rows, Dialogue(third, [1], 0.0), *rows[::-1]]) == rows


def test_a_stopped_run_continues_and_text_grows_beside_the_committed_dialogues(tmp_path, monkeypatch):
    """Held-out dialogues stay the same, and no turn of them is learned."""
    chunk, plan = own_text.chunk, loop.TrainingPlan(steps=1, rows=1, length=8, learning_rate=1e-2, seed=0)
    monkeypatch.setattr(own_text, "HELD_OUT_SHARE", 0.3)
    own_text.write(PAIR, tmp_path, 150)
    whole = own_text.load(own_text.path_of("t"))
    own_text.path_of("t").unlink()
    (tmp_path / "own_text" / "t" / "00001.npz").unlink()
    monkeypatch.setattr(own_text, "chunk", lambda *made: chunk(*made) if made[2] else pytest.fail("made again"))
    own_text.write(PAIR, tmp_path, 150)
    assert own_text.load(own_text.path_of("t")) == whole
    answers = [token for row in whole for token in row.answer]
    counts = np.bincount(answers, minlength=24)
    listed = vocabulary.shipped("t", (counts > 0).sum())
    assert (np.diff(counts[listed]) <= 0).all() and set(listed.tolist()) == set(answers)

    before, windows = own_text.lessons(PAIR, "t", tmp_path / "new", plan), []
    own_text.write(PAIR, tmp_path / "new", 400)
    assert int(min((tmp_path / "new" / "own_text" / "t").iterdir()).stem) == len(whole)
    assert own_text.load(own_text.path_of("t")) == whole
    monkeypatch.setattr(own_text, "windows", lambda rows, *around: windows.append(rows) or before[1])
    own_text.lessons(PAIR, "t", tmp_path / "new", plan)
    (learned, held_out), first = windows, round(0.7 * len(whole))
    assert held_out == whole[first:] and learned[:first] == whole[:first] and len(learned) > first
    turns = [tuple(row.turn) for row in learned + held_out]
    assert len(set(turns)) == len(turns)


ROWS = [Dialogue([5, 6, END], [7, END], 0.0), Dialogue([8, END], [9, 9, 9, 4], 0.5), Dialogue([], [70_000], 1.0)]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:2]])
def test_dialogues_come_back_from_a_file(rows, tmp_path):
    own_text.save(tmp_path / "a" / "b.npz", rows)
    assert own_text.load(tmp_path / "a" / "b.npz") == rows


def test_windows_follow_one_another_and_the_template_is_not_learned():
    tokens, learned = own_text.windows(ROWS[:2], [3, 4], [11], 5)
    stream = [3, 4, 5, 6, 2, 11, 7, 2, 3, 4, 8, 2, 11, 9, 9, 9]
    assert tokens.tolist() == [stream[:6], stream[5:11], stream[10:16]]
    assert learned.int().tolist() == [[0, 1, 1, 1, 0], [1, 1, 0, 0, 1], [1, 0, 1, 1, 1]]


def test_ngrams_are_counted_in_answers_alone(tmp_path, monkeypatch):
    greedy, sampled, question = [13, 8, 9, 2], [11, 12, 2], [3, 4, 2]
    own_text.save(own_text.path_of("t"), [Dialogue(question, greedy, 0.0), Dialogue(question, sampled, 0.7)] * 2)
    monkeypatch.setattr(ngrams, "load_pair", lambda name, **settings: PAIR)
    made = ngrams.make("t", tmp_path)
    assert [made.orders[0][token,] for token in (13, 8, 9, 11, 12)] == [8, 9, 2, 12, 2]
    assert (5,) not in made.orders[0] and (3,) not in made.orders[0], "neither template nor turns are learned"
    assert load_tables(tmp_path / "heads" / "t" / "ngrams", small_models.llama(3)).orders == made.orders
