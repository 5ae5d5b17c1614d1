"""Traces: what is shared is what would have been computed apart, a stop loses nothing, and files are small."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from torch.nn.utils.rnn import pad_sequence

from lib import replay
from lib.drafters.drafter import Drafter
from lib.drafters.filling import rank_of
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.replay import recording, trace
from lib.tests import small_models
from lib.tests.replay.test_replay import synthetic
from lib.trees import named, shapes

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
LONG, OTHER = small_models.prompts(0, (20, 7))
PROMPTS = [LONG[:6], LONG[:13], OTHER, LONG, OTHER, LONG[:13]]  # starts in two texts, one of them twice
NAMES, KINDS = tuple("abcdef"), ("k",) * 6


class Heads(Drafter):
    """A stand-in for drafters that propose several tokens ahead; ranks depend on the root and the depth."""

    reads_ahead = True

    def read_ahead(self, target, texts, starts, depth):
        counts = [len(text) - 1 - start for text, start in zip(texts, starts)]
        ranks = torch.full((len(texts), max(1, *counts), depth), -1, dtype=torch.int32)
        for row, count in enumerate(counts):
            for t in range(count):
                for d in range(min(depth, count - t)):
                    ranks[row, t, d] = (int(texts[row][starts[row] + t]) + d) % 3  # known from the root and the depth
        return ranks, (ranks >= 0).float() / 2


def plain_logits(model, prompts, written):
    """The oracle of `branched_logits`: one forward pass over each row's whole text."""
    texts = [torch.cat([prompt, torch.tensor(row[:-1] or [0])]) for prompt, row in zip(prompts, written)]
    logits = model(pad_sequence(texts, batch_first=True)).logits
    return torch.cat([row[len(prompt) : len(prompt) + len(text) - 1]
                      for row, prompt, text in zip(logits, prompts, written)])


def test_reading_from_shared_prefixes_is_reading_whole_texts():
    written = [[1, 2, 3, 4], [5], [6, 7], [8, 9, 1], [2] * 9, [3, 1]]
    with torch.inference_mode():
        shared, whole = (read(TARGET, PROMPTS, written) for read in (recording.branched_logits, plain_logits))
    assert shared.dtype == torch.float64 and shared.shape == (sum(len(row) - 1 for row in written), 24)
    assert torch.allclose(shared, whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_what_models_thought_of_each_token_is_kept(temperature):
    written = [[1, 2, 3, 4], [5], [6, 7], [8, 9, 1], [2] * 9, [3, 1]]
    made = replay.read(TARGET, {"d": DRAFTER}, PROMPTS, written, names=NAMES, kinds=KINDS, temperature=temperature)
    for model, probs in ((TARGET, made.target_probs), (DRAFTER, made.probs["d"])):
        with torch.inference_mode():
            logits = plain_logits(model, PROMPTS, written) / (temperature or 1.0)
        law = torch.distributions.Categorical(logits=logits)
        inside = np.arange(probs.shape[1])[None] < made.lengths[:, None]
        said = torch.tensor([token for row in written for token in row[1:]])
        assert np.allclose(probs[inside], law.log_prob(said).exp(), atol=1e-6) and not probs[~inside].any()


def test_batches_of_a_reading_are_joined_in_their_order(monkeypatch):
    written = [[1, 2, 3, 4], [5], [6, 7], [8, 9, 1], [2] * 9, [3, 1]]
    models = {"d": DRAFTER, "h": Heads()}
    at_once = replay.read(TARGET, models, PROMPTS, written, names=NAMES, kinds=KINDS, temperature=1.0)
    monkeypatch.setattr(recording, "MOST_PROBABILITIES", 1)
    one_by_one = replay.read(TARGET, models, PROMPTS, written, names=NAMES, kinds=KINDS, temperature=1.0)
    for name in ("tokens", "lengths", "loops"):
        assert np.array_equal(getattr(at_once, name), getattr(one_by_one, name))
    assert np.array_equal(at_once.ranks["d"], one_by_one.ranks["d"])
    assert np.array_equal(at_once.ranks["h"], one_by_one.ranks["h"]) and at_once.ranks["h"].shape == (6, 8, 8)
    assert np.allclose(at_once.alpha["d"], one_by_one.alpha["d"], atol=1e-6)
    assert "h" not in at_once.alpha


def test_ranks_from_where_the_round_started_are_replayed():
    written = [[1, 2, 3, 4, 7, 8], [5], [6, 7], [8, 9, 1]]
    made = replay.read(TARGET, {"h": Heads()}, PROMPTS[:4], written, names=NAMES[:4], kinds=KINDS[:4], ahead=3,
                       eos_token_id=[8, 5, 7, 1])
    # A root r meets the ranks r, r + 1, r + 2, each modulo 3, up to its text's end.
    tree = named("kary:3@39")
    assert replay.accepted_lengths(made, tree).tolist() == [3, 3, 3, 2, 1, 1, 2, 1]
    assert replay.accepted_lengths(made, shapes.chain(3)).tolist() == [0, 0, 1, 0, 0, 1, 0, 1]


def test_what_cannot_be_recorded_is_refused():
    for drafter in (LanguageModelDrafter(DRAFTER), LookupDrafter()):
        with pytest.raises(ValueError, match=f"a {type(drafter).__name__} cannot be recorded in a trace"):
            replay.read(TARGET, {"d": drafter}, PROMPTS[:1], [[1, 2]], names="a", kinds="k")
    with pytest.raises(ValueError, match="20 tokens, its continuation 200, and 50 beyond .*: 270 positions, but the "
                                         "window of the target has 256"):
        replay.record(TARGET, {}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=200, beyond=50)


def test_a_trace_goes_on_past_the_limit():
    asked = dict(names=NAMES, kinds=KINDS, max_new_tokens=6)
    made = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, beyond=5, **asked)
    longer = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, beyond=30, **asked)
    assert (made.lengths == 6).all() and (made.ends == 11).all() and not made.ended.any()
    assert np.array_equal(longer.tokens[:, :12], made.tokens)
    assert np.array_equal(longer.loops, made.loops), "a loop past the limit is none"
    assert [made.starts(depth)[0] for depth in (0, 4, 5, 7, 40)] == [6, 6, 6, 4, 0]
    eos = int(made.tokens[0, 8])
    ended = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, beyond=5, eos_token_id=eos, **asked)
    assert ended.ended[0] and (ended.tokens[ended.ended, ended.ends[ended.ended]] == eos).all()
    assert np.array_equal(ended.lengths, np.minimum(ended.ends, 6))
    assert np.array_equal(ended.starts(40)[ended.ended], ended.lengths[ended.ended])


def test_a_drafter_with_more_padding_than_the_target_is_ranked_among_the_targets_tokens():
    wider = small_models.llama(2, vocabulary=30)
    made = replay.record(TARGET, {"d": wider}, PROMPTS[:1], names="a", kinds="k", max_new_tokens=9)
    text = torch.cat([PROMPTS[0], torch.from_numpy(made.tokens[0].astype(int))])
    with torch.inference_mode():
        scores = wider(text[None]).logits[0, 5:-1, :24][1:]
    order = scores.argsort(descending=True, stable=True)
    assert made.ranks["d"][0].tolist() == [row.tolist().index(said) for row, said in zip(order, text[7:].tolist())]


class Stopped(Exception):
    pass


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stopped_recording_goes_on_behind_its_last_batch(tmp_path, temperature, monkeypatch):
    asked = dict(names=NAMES, kinds=KINDS, max_new_tokens=9, temperature=temperature, rows=2, seed=1)
    whole, save = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, **asked), trace.save

    def stop_behind_the_second(made, path):
        save(made, path)
        if len(list(tmp_path.iterdir())) == 2:
            raise Stopped

    monkeypatch.setattr(trace, "save", stop_behind_the_second)
    with pytest.raises(Stopped):
        replay.record(TARGET, {"d": DRAFTER}, PROMPTS, parts=tmp_path, **asked)
    monkeypatch.undo()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, parts=tmp_path, **asked)
    assert len(kept) == 2 and all((tmp_path / name).stat().st_mtime_ns == time for name, time in kept.items())
    assert np.array_equal(again.tokens, whole.tokens) and np.array_equal(again.ranks["d"], whole.ranks["d"])
    assert again.about == whole.about and again.prompts == whole.prompts


@pytest.mark.parametrize("damage, said", [
    (lambda path: path.write_bytes(path.read_bytes()[:60]), "record the trace again"),
    (lambda path: path.write_bytes(b""), "record the trace again"),
    (lambda path: save_file({"w": np.zeros(3)}, path), "is not a trace, or of an older version: it lacks about, ended"),
], ids=["cut short", "empty", "no trace"])
def test_a_damaged_file_is_named_and_a_damaged_batch_recorded_anew(tmp_path, damage, said):
    asked = dict(names=NAMES, kinds=KINDS, max_new_tokens=3, rows=3, parts=tmp_path)
    whole = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, **asked)
    path = min(tmp_path.iterdir())
    damage(path)
    with pytest.raises(ValueError, match=f"{path}.*{said}"):
        replay.load(path)
    again = replay.record(TARGET, {"d": DRAFTER}, PROMPTS, **asked)
    assert np.array_equal(again.tokens, whole.tokens) and again.prompts == whole.prompts


def test_a_saved_trace_comes_back_small(tmp_path):
    made = synthetic(np.random.default_rng(0), rows=250, width=160, ranks=4096)
    made = replay.Trace(**{**vars(made), "chances": {"d|multi_step|2": np.full((250, 160, 2), 0.25, np.float32)}})
    path = tmp_path / "t.safetensors"
    replay.save(made, path)
    read = replay.load(path)
    assert made.lengths.sum() > 19_000 and path.stat().st_size < 2e6
    with safe_open(path, "numpy") as file:
        assert file.get_tensor("ranks.d").dtype == np.int16 and file.get_tensor("tokens").dtype == np.int8
    for name, kind in {"tokens": np.int32, "lengths": np.int64, "loops": np.int64}.items():
        assert np.array_equal(getattr(read, name), getattr(made, name)) and getattr(read, name).dtype == kind
    assert np.array_equal(read.ranks["d"], made.ranks["d"]) and read.ranks["d"].dtype == np.int32
    assert read.kinds == made.kinds and (read.chances["d|multi_step|2"] == 0.25).all()
    assert [file.name for file in tmp_path.iterdir()] == ["t.safetensors"]


def test_rows_are_selected_and_joined():
    made = synthetic(np.random.default_rng(1), rows=8, ahead=3)
    halves = made.select(np.arange(8) < 3), made.select(np.arange(3, 8))
    again = replay.join(halves)
    assert halves[0].prompts == ("0", "1", "2") and again.prompts == made.prompts
    assert np.array_equal(again.ranks["d"], made.ranks["d"]) and np.array_equal(again.lengths, made.lengths)
    narrow = replay.Trace(**{**vars(halves[0]), "tokens": halves[0].tokens[:, :5]})
    assert (replay.join([narrow, halves[1]]).tokens[:3, 5:] == -1).all()


@pytest.mark.parametrize(
    "tokens, start",
    [
        ([1, 2, 3] + [7, 8] * 8, 5),  # the first cycle is news, its repetition is not
        ([5] * 12, 1),
        ([*range(30)], 29),
        ([1, 2, 3] * 2, 5),  # twice is no loop
    ],
)
def test_loops_are_found_where_they_begin(tokens, start):
    assert replay.loop_start(tokens) == start


def test_rank_counts_what_scores_higher_and_ties_by_index():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0]]).repeat(4, 1)
    assert rank_of(scores, torch.arange(4)).tolist() == [3, 0, 1, 2]
