"""Traces: what is read at once is what would be read text by text, a stop loses nothing, and files are small; the
drafters that compete on them are those whose rounds follow from them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from lib import replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.models.load import Pair
from lib.replay import recording
from lib.tests import small_heads, small_models
from lib.tests.replay.test_replay import synthetic

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
LONG, OTHER = small_models.prompts(0, (20, 7))
PROMPTS = [LONG[:6], LONG[:13], OTHER, LONG, OTHER, LONG[:13]]  # starts in two texts, one of them twice
NAMES, KINDS = tuple("abcdef"), ("k",) * 6
WRITTEN = [[1, 2, 3, 4], [5], [6, 7], [8, 9, 1], [2] * 9, [3, 1]]


class Tokenizer:
    eos_token_id, chat_template = None, None


PAIR = Pair("t/d", TARGET, DRAFTER, Tokenizer(), "t/1", "d")


def texts(written=WRITTEN, ended=None):
    count = len(written)
    return replay.Texts(NAMES[:count], KINDS[:count], PROMPTS[:count], written, ended or [False] * count)


def record(drafters=(("d", DRAFTER),), prompts=PROMPTS, **settings):
    return replay.record(TARGET, dict(drafters), prompts, names=NAMES[:len(prompts)], kinds=KINDS[:len(prompts)],
                         **settings)


def plain_logits(model, prompts, written):
    """The oracle of `teacher_forced`: one forward pass over each row's whole text."""
    whole = [torch.cat([prompt, torch.tensor(row[:-1] or [0])]) for prompt, row in zip(prompts, written)]
    logits = model(pad_sequence(whole, batch_first=True)).logits
    return torch.cat([row[len(prompt) : len(prompt) + len(text) - 1]
                      for row, prompt, text in zip(logits, prompts, written)])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_probabilities_and_hidden_states_are_those_of_whole_texts(temperature):
    made = replay.read(TARGET, {"d": DRAFTER}, texts(), temperature=temperature)
    for model, probs in ((TARGET, made.target_probs), (DRAFTER, made.probs["d"])):
        with torch.inference_mode():
            plain = plain_logits(model, PROMPTS, WRITTEN)
            shared, _ = recording.teacher_forced(model, PROMPTS, WRITTEN)
            alone, states = recording.teacher_forced(model, PROMPTS, WRITTEN, hidden_states=True)
            for layers, prompt, row in zip(states, PROMPTS, WRITTEN, strict=True):
                text = torch.tensor([*prompt.tolist(), *row[:-1]])
                whole = model(text[None], output_hidden_states=True).hidden_states
                assert all(torch.allclose(*pair, atol=1e-10, rtol=0) for pair in zip(layers, whole, strict=True))
        for logits in (shared, alone):
            assert torch.allclose(logits, plain, atol=1e-10, rtol=0) and logits.dtype == torch.float64
        inside = np.arange(probs.shape[1])[None] < made.lengths[:, None]
        tokens = torch.tensor([token for row in WRITTEN for token in row[1:]])
        expected = torch.distributions.Categorical(logits=plain / (temperature or 1.0)).log_prob(tokens).exp()
        assert np.allclose(probs[inside], expected, atol=1e-6) and not probs[~inside].any()


def test_batches_of_a_reading_are_joined_in_their_order(monkeypatch):
    models = {"d": DRAFTER, "h": small_heads.DRAFTERS["medusa"](TARGET, small_heads.head("medusa", TARGET))}
    at_once = replay.read(TARGET, models, texts(), temperature=1.0)
    monkeypatch.setattr(recording, "MOST_PROBABILITIES", 1)
    one_by_one = replay.read(TARGET, models, texts(), temperature=1.0)
    for name in ("tokens", "lengths"):
        assert np.array_equal(getattr(at_once, name), getattr(one_by_one, name))
    assert np.array_equal(at_once.ranks["d"], one_by_one.ranks["d"])
    assert np.array_equal(at_once.ranks["h"], one_by_one.ranks["h"]) and at_once.ranks["h"].shape == (6, 8, 8)


def test_a_drafter_with_more_padding_than_the_target_is_ranked_among_the_targets_tokens():
    made = record({"d": small_models.llama(2, vocabulary=30)}, PROMPTS[:1], max_new_tokens=9)
    whole = torch.cat([PROMPTS[0], torch.from_numpy(made.tokens[0].astype(int))])
    with torch.inference_mode():
        scores = small_models.llama(2, vocabulary=30)(whole[None]).logits[0, 5:-1, :24][1:]
    order = scores.argsort(descending=True, stable=True)
    assert made.ranks["d"][0].tolist() == [row.tolist().index(token) for row, token in zip(order, whole[7:].tolist())]


def test_a_trace_goes_on_past_the_limit():
    made, longer = record(max_new_tokens=6, beyond=5), record(max_new_tokens=6, beyond=30)
    assert (made.lengths == 6).all() and (made.ends == 11).all() and not made.ended.any()
    assert np.array_equal(longer.tokens[:, :12], made.tokens)
    assert [made.starts(depth)[0] for depth in (0, 4, 5, 7, 40)] == [6, 6, 6, 4, 0]
    eos = int(made.tokens[0, 8])
    ended = record(max_new_tokens=6, beyond=5, eos_token_id=eos)
    assert ended.ended[0] and (ended.tokens[ended.ended, ended.ends[ended.ended]] == eos).all()
    assert np.array_equal(ended.lengths, np.minimum(ended.ends, 6))
    assert np.array_equal(ended.starts(40)[ended.ended], ended.lengths[ended.ended])
    with pytest.raises(ValueError, match="prompt and new tokens need 270 positions, the model's window has 256"):
        record(max_new_tokens=200, beyond=50)


@pytest.mark.parametrize("temperature, damage", [
    (1.0, lambda path: path.unlink()), (0.0, lambda path: path.write_bytes(path.read_bytes()[:60])),
    (0.0, lambda path: path.write_bytes(b"")), (0.0, lambda path: np.savez(path, w=np.zeros(3)))],
    ids=["stopped", "cut short", "empty", "no trace"])
def test_a_recording_continues_with_its_undamaged_batches(temperature, damage, tmp_path):
    settings = dict(max_new_tokens=9, temperature=temperature, rows=2, seed=1, parts=tmp_path)
    whole = record(**settings | {"parts": None})
    record(**settings)
    _, path, _ = paths = sorted(tmp_path.iterdir())
    damage(path)
    times = [path.exists() and path.stat().st_mtime_ns for path in paths]
    again = record(**settings)
    assert [path.stat().st_mtime_ns == time for path, time in zip(paths, times)] == [True, False, True]
    assert np.array_equal(again.tokens, whole.tokens) and np.array_equal(again.ranks["d"], whole.ranks["d"])
    assert again.labels == whole.labels and again.prompts == whole.prompts


def two_drafters(pairs, look_up):
    return {"d": LanguageModelDrafter(pairs[0].draft_model), look_up: LookupDrafter()}


def test_competitors_are_made_anew_from_what_made_them():
    known = recording.Competitors(two_drafters, [PAIR], "lookup")
    assert list(known) == ["d", "lookup"] and recording.of_ranks(known) == {"d": DRAFTER}
    made, arguments = known.__reduce__()
    assert list(made(*arguments)) == list(known)
    settings = {"names": NAMES, "kinds": KINDS, "max_new_tokens": 5}
    recorded = replay.record(TARGET, known, PROMPTS, **settings)
    assert np.array_equal(recorded.ranks["d"], record(max_new_tokens=5).ranks["d"])


def test_a_saved_trace_comes_back_small(tmp_path):
    made = synthetic(np.random.default_rng(0), rows=250, width=160, ranks=4096)
    made = replace(made, chances={"d|multi_step|2": np.full((250, 160, 2), 0.25, np.float32)})
    path = tmp_path / "t.npz"
    replay.save(made, path)
    read = replay.load(path)
    assert made.lengths.sum() > 19_000 and path.stat().st_size < 2e6
    with np.load(path) as file:
        assert file["ranks.d"].dtype == np.int16 and file["tokens"].dtype == np.int8
    for name, kind in {"tokens": np.int32, "lengths": np.int64}.items():
        assert np.array_equal(getattr(read, name), getattr(made, name)) and getattr(read, name).dtype == kind
    assert np.array_equal(read.ranks["d"], made.ranks["d"]) and read.ranks["d"].dtype == np.int32
    assert read.kinds == made.kinds and (read.chances["d|multi_step|2"] == 0.25).all()
    assert [file.name for file in tmp_path.iterdir()] == ["t.npz"]


@pytest.mark.parametrize(("tokens", "does"), [
    ([7, 8] * 8, True), ([5] * 12, True), ([*range(30)], False), ([1, 2, 3] * 2, False),
    ([*range(64), *[1] * 60], False),  # the loop begins after what counts
    ([token for number in range(8) for token in (*range(50, 66), number)], True)])  # with numbers in between
def test_texts_that_loop_are_found(tokens, does):
    assert replay.loops(tokens) == does
    made = replay.read(None, {}, texts([tokens, [1, 2, 3]]))
    assert made.looping.tolist() == [does, False]
