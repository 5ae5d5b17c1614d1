"""Dialogues that a model writes by itself: what is kept of them, that a stopped run continues, and n-grams of them."""

from types import SimpleNamespace

import pytest
import torch

from lib.drafters.text_drafters import load_tables
from lib.tests import small_models
from lib.tests.live import continuation
from lib.training import own_text

END = 2
MODEL = small_models.llama(3, gain=1.0)  # so flat that a sampled turn ends soon


class Chat:
    """A tokenizer of letters with a chat template; "|" ends a turn."""

    chat_template, eos_token, eos_token_id = "a template", "|", END

    def apply_chat_template(self, messages, **settings):
        return f"ab{messages[0]['content']}|cde"

    def __call__(self, text):
        return {"input_ids": [ord(letter) - ord("a") + 3 for letter in text]}


PAIR = SimpleNamespace(target=MODEL, tokenizer=Chat(), target_name="t", vocabulary=small_models.VOCABULARY)
DIALOGUES = {(5, 6, END): [7, END], (8, END): [9, 9, 9, 4]}


@pytest.fixture(autouse=True)
def smaller(monkeypatch, tmp_path):
    for name, value in {"CHUNK": 12, "TURN": 20, "ANSWER": 8, "TEXT": tmp_path / "text", "HELD_OUT": 1}.items():
        monkeypatch.setattr(own_text, name, value)


@pytest.mark.parametrize("changed", [{"eos_token": "</s>"}, {"eos_token": None}, {"chat_template": None}])
def test_the_template_is_the_tokens_around_a_users_turn(changed):
    assert own_text.template(PAIR) == ([3, 4], [5, 6, 7])
    other = Chat()
    vars(other).update(changed)
    with pytest.raises(ValueError, match="target 't' has no chat template that ends a user's turn with"):
        own_text.template(SimpleNamespace(tokenizer=other, target_name="t"))


def test_dialogues_are_a_turn_that_ended_and_an_answer_of_which_half_are_greedy():
    chunks = [own_text.chunk(PAIR, number) for number in range(3)]
    assert own_text.chunk(PAIR, 1) == chunks[1] != chunks[0]
    greedy = 0
    for turn, answer in (row for chunk in chunks for row in chunk.items()):
        assert turn[-1] == END and END not in turn[:-1] and own_text.FEWEST < len(turn) <= own_text.TURN
        assert len(answer) <= own_text.ANSWER
        prompt = torch.tensor([3, 4, *turn, 5, 6, 7])
        greedy += continuation(MODEL, prompt, own_text.ANSWER, eos_token_id=END) == answer
    assert 0.2 < greedy / sum(map(len, chunks)) < 0.8, "loops are dropped more often from greedy answers"


def test_loops_and_turns_without_an_end_are_dropped(monkeypatch):
    first, second, third = [5, 6, 7, 8, END], [9, 8, 7, 6, 5, END], [9, 8, 7, 6, 5, 4, END]
    turns = [first, [5, 6, END], second, [5, 6, 7, 8, 9, 10], third, [8, 9] * 5]  # too short, without an end, a loop
    script = [turns, [[7] * 9, [8, END]], [[9, END]]]  # greedy answers of the first and third, a sampled one
    monkeypatch.setattr(own_text, "continuations", lambda *arguments, **settings: script.pop(0))
    assert own_text.chunk(PAIR, 0) == {tuple(third): [8, END], tuple(second): [9, END]}


def test_a_stopped_run_continues_and_text_grows(monkeypatch):
    """The windows that are held out stay the same, and other chunks follow."""
    chunk, numbers = own_text.chunk, []
    monkeypatch.setattr(own_text, "chunk", lambda pair, number: numbers.append(number) or chunk(pair, number))
    own_text.write(PAIR, 150)
    whole, (_, held_out) = own_text.load("t"), own_text.lessons(PAIR, 8)
    own_text.write(PAIR, 150)
    own_text.write(PAIR, 300)
    grown, (training, again) = own_text.load("t"), own_text.lessons(PAIR, 8)
    assert len(numbers) == len({*numbers}) and [*grown][: len(whole)] == [*whole] and len(grown) > len(whole)
    assert sum(len(turn) + len(answer) for turn, answer in grown.items()) >= 300
    assert torch.equal(held_out[0], again[0]) and len(training[0]) > len(held_out[0])


def test_dialogues_come_back_from_a_file():
    own_text.save("t", dialogues := DIALOGUES | {(70_000,): [1]})
    assert own_text.load("t") == dialogues


def test_windows_follow_one_another_and_the_template_is_not_learned():
    own_text.save("t", DIALOGUES)
    parts = own_text.lessons(PAIR, 5)
    tokens, learned = (torch.cat([held_out, training]) for training, held_out in zip(*parts))
    stream = [3, 4, 5, 6, 2, 5, 6, 7, 7, 2, 3, 4, 8, 2, 5, 6, 7, 9, 9, 9, 4]
    assert tokens.tolist() == [stream[first : first + 6] for first in (0, 5, 10, 15)]
    assert learned.int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 1]]
    assert len(parts[1][0]) == 1


def test_ngrams_are_counted_in_answers_alone(tmp_path):
    own_text.save("t", {(3, 4, 2): [13, 8, 9, 2], (4, 3, 2): [11, 12, 2], (3, 2): [13, 8, 9, 2], (4, 2): [11, 12, 2]})
    own_text.count_ngrams(PAIR, tmp_path)
    [order, *_] = load_tables(tmp_path / "heads" / "t" / "ngrams", MODEL).orders
    assert [order[token,] for token in (13, 8, 9, 11, 12)] == [8, 9, 2, 12, 2]
    assert (3,) not in order and (4,) not in order, "turns are not learned"
