"""Dialogues that a model writes by itself: what is kept of them, and that a stopped run continues."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib.drafters import vocabulary
from lib.replay.trace import loops
from lib.tests import small_models
from lib.training import command, own_text
from lib.training.own_text import Dialogues

END = 2
MODEL = small_models.llama(3, gain=1.0)  # so flat that a sampled turn ends soon
SMALLER = dict(ROWS=8, CHUNK=12, TURN=20, ANSWER=8)


class Chat:
    """A tokenizer of letters with a chat template; "|" ends a turn."""

    chat_template, eos_token, eos_token_id = "a template", "|", END

    def apply_chat_template(self, messages, **settings):
        return f"ab{messages[0]['content']}|cde"

    def __call__(self, text):
        return {"input_ids": [ord(letter) - ord("a") + 3 for letter in text]}


@pytest.fixture
def smaller(monkeypatch):
    for name, value in SMALLER.items():
        monkeypatch.setattr(own_text, name, value)


def written(folder, tokens=150, seed=0):
    return own_text.make(MODEL, Chat(), folder, tokens=tokens, seed=seed)


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def test_the_template_is_what_stands_around_a_users_turn():
    assert own_text.template(Chat()) == ([3, 4], [5, 6, 7])
    other = Chat()
    other.eos_token = "</s>"
    with pytest.raises(ValueError, match="does not end a user's turn with '</s>'"):
        own_text.template(other)
    other.chat_template, other.bos_token_id = None, 1
    assert own_text.template(other) == ([1], []), "a base model begins with its first token"
    other.bos_token_id = other.eos_token_id = None
    with pytest.raises(ValueError, match="neither a chat template nor a token.*take another model"):
        own_text.template(other)


def test_a_base_model_continues_its_first_token(smaller, tmp_path):
    base = SimpleNamespace(chat_template=None, bos_token_id=1, eos_token_id=END)
    made = own_text.make(MODEL, base, tmp_path, tokens=60)
    assert not made.turn.any() and (made.temperature == 1).all() and made.answer.max() <= 28
    texts = [tuple(answer) for _, answer in made.rows()]
    assert len(set(texts)) == len(texts)
    tokens, writers = made.stream(*own_text.template(base))
    assert tokens[0] == 1 and writers[0] == own_text.TEMPLATE
    assert (writers[1 : len(texts[0]) + 1] == own_text.SAMPLED).all()


def test_rows_are_a_turn_that_ended_and_an_answer_of_which_half_are_greedy(smaller, tmp_path):
    made = written(tmp_path)
    assert len(made.tokens) == (made.turn + made.answer).sum() > 0
    shares = {0.0: 0, own_text.WARM: 0}
    for (turn, answer), temperature in zip(made.rows(), made.temperature):
        assert turn[-1] == END and END not in turn[:-1] and own_text.FEWEST < len(turn) <= own_text.TURN
        assert not loops(turn.tolist()) and not loops(answer.tolist())
        shares[round(float(temperature), 3)] += 1
        if temperature == 0:
            prompt = torch.tensor([[3, 4, *turn.tolist(), 5, 6, 7]])
            own = MODEL.generate(prompt, max_new_tokens=own_text.ANSWER, do_sample=False, eos_token_id=END,
                                 pad_token_id=0)[0, prompt.shape[1] :]
            assert own.tolist() == answer.tolist()
    assert min(shares.values()) > 0.2 * len(made), "loops are dropped more often from greedy answers"


def test_a_chunk_is_a_function_of_seed_and_number(smaller):
    one, again, other, later = (own_text.chunk(MODEL, Chat(), *place) for place in ((0, 1), (0, 1), (0, 2), (1, 1)))
    assert equal(one, again) and not equal(one, other) and not equal(one, later)


def test_a_stopped_run_continues(smaller, tmp_path, monkeypatch):
    whole, chunk = written(tmp_path / "whole"), own_text.chunk

    def stopping(target, tokenizer, number, seed):
        if number == 1:
            raise KeyboardInterrupt
        return chunk(target, tokenizer, number, seed)

    monkeypatch.setattr(own_text, "chunk", stopping)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "parts")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["00000.npz"]
    monkeypatch.setattr(own_text, "chunk", lambda *given: chunk(*given) if given[2] else pytest.fail("made again"))
    assert equal(written(tmp_path / "parts"), whole)


def test_text_grows_beside_the_committed_dialogues(smaller, tmp_path, monkeypatch):
    monkeypatch.setattr(own_text, "TEXT", tmp_path / "text")
    committed = written(tmp_path / "first")
    committed.save(own_text.path_of("t"))
    folder, most = own_text.chunks_of("t", tmp_path), len(committed.tokens)
    training, held_out = own_text.to_learn("t", tmp_path, 0.3)
    assert len(training) + len(held_out) == len(committed) and not folder.exists()
    grown = own_text.make(MODEL, Chat(), folder, tokens=most + 100, before=committed)
    assert len(grown.tokens) > most and int(min(folder.iterdir()).stem) >= len(committed)
    more, same = own_text.to_learn("t", tmp_path, 0.3)
    assert equal(same, held_out) and equal(more.cut(len(training))[0], training)
    assert len(more) + len(held_out) == len(grown), "a user's turn that was held out is not learned"
    turns = [tuple(turn.tolist()) for part in (more, same) for turn, _ in part.rows()]
    assert len(set(turns)) == len(turns)


def test_loops_turns_without_an_end_and_repeated_turns_are_dropped(monkeypatch):
    first, second, third = [5, 6, 7, 8, END], [9, 8, 7, 6, 5, END], [9, 8, 7, 6, 5, 4, END]
    turns = [second, [5, 6, END], [5, 6, 7, 8, 9, 10], [8, 9] * 5, third, first]  # too short, without an end, a loop
    script = [turns, [[7] * 9, [8, END]], [[9, END]]]  # greedy answers of the first and third, a sampled one
    monkeypatch.setattr(own_text, "continuations", lambda *given, **settings: script.pop(0))
    made = own_text.chunk(MODEL, Chat(), 0, 0)
    assert [(turn.tolist(), answer.tolist()) for turn, answer in made.rows()] == [(third, [8, END]), (second, [9, END])]
    assert made.temperature.tolist() == pytest.approx([0, own_text.WARM])
    both = own_text.joined([made, made])
    assert equal(both, made)


def dialogues():
    return own_text.packed([([5, 6, END], [7, END], 0.0), ([8, END], [9, 9, 9, 4], 0.7), ([4, END], [7], 0.0)])


def test_the_stream_says_who_wrote_each_token(tmp_path):
    tokens, writers = dialogues().stream([3, 4], [11])
    assert tokens.tolist() == [3, 4, 5, 6, 2, 11, 7, 2, 3, 4, 8, 2, 11, 9, 9, 9, 4, 3, 4, 4, 2, 11, 7]
    nobody, user, sampled, greedy = own_text.TEMPLATE, own_text.USER, own_text.SAMPLED, own_text.GREEDY
    assert writers.tolist() == [*[nobody] * 2, *[user] * 3, nobody, *[greedy] * 2, *[nobody] * 2, *[user] * 2, nobody,
                                *[sampled] * 4, *[nobody] * 2, *[user] * 2, nobody, greedy]
    dialogues().save(tmp_path / "a" / "b.npz")
    assert equal(own_text.load(tmp_path / "a" / "b.npz"), dialogues())
    assert own_text.packed([([70_000], [1], 0.0)]).tokens.tolist() == [70_000, 1]


def test_a_split_keeps_rows_whole():
    first, last = dialogues().cut(2)
    assert isinstance(last, Dialogues) and (len(first), len(last)) == (2, 1)
    rows = [(turn.tolist(), answer.tolist()) for part in (first, last) for turn, answer in part.rows()]
    assert rows == [(turn.tolist(), answer.tolist()) for turn, answer in dialogues().rows()]


def test_the_command_writes_dialogues_and_the_frequent_tokens_of_their_answers(smaller, tmp_path, monkeypatch):
    monkeypatch.setattr(own_text, "TEXT", tmp_path / "text")
    monkeypatch.setattr(vocabulary, "SHIPPED", tmp_path / "models")
    pair = SimpleNamespace(target=MODEL, tokenizer=Chat(), target_name="t")
    monkeypatch.setattr(command, "load_pair", lambda name, **settings: pair)
    command.main(["own_text", "--target", "t", "--tokens", "100", "--folder", str(tmp_path / "work")])
    made = own_text.load(own_text.path_of("t"))
    assert len(made.tokens) > 50 and (tmp_path / "work" / "own_text" / "t" / "00000.npz").exists()
    answers = np.concatenate([answer for _, answer in made.rows()])
    counts = np.bincount(answers, minlength=24)
    listed = vocabulary.shipped("t", (counts > 0).sum())
    assert (np.diff(counts[listed]) <= 0).all() and set(listed.tolist()) == set(answers.tolist())
