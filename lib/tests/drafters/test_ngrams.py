"""N-grams against scans of the whole text and plain counting; their files."""

import json
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lib import replay
from lib.drafters import make, ngrams
from lib.drafters.ngrams import NgramDrafter, NgramTables
from lib.replay import live
from lib.tests import small_heads, small_models
from lib.tests.replay.test_replay import trees
from lib.tests.training.test_own_text import Chat
from lib.training import ngrams as counting
from lib.training import own_text
from lib.trees import named, shapes

VOCABULARY = 4
CONTEXT = 16  # tokens of a text before the first place that is counted
TEXTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)
MODEL = small_models.llama(3)
NUMBER = [VOCABULARY**place for place in range(8)]


def key(context):
    return sum(token * NUMBER[place] for place, token in enumerate(reversed(context)))


def contexts(n):
    return st.tuples(*[st.integers(0, VOCABULARY - 1)] * n)


@st.composite
def tables(draw, orders=3):
    """What is known behind contexts of each length, by the contexts themselves."""
    return [draw(st.dictionaries(contexts(n), st.integers(0, VOCABULARY - 1), max_size=8))
            for n in range(1, orders + 1)]


def numbered(known):
    return NgramTables(tuple({key(context): token for context, token in each.items()} for each in known), VOCABULARY)


def scanned(text, context, known, enough, longest):
    """What may stand behind a context, by scans from the end of the text; each once."""
    def own(n):
        ends = (end for end in range(len(text) - 1, n - 1, -1) if text[end - n : end] == context[-n:])
        return [text[end] for end in ends][:1] if n <= len(context) else []

    said = [token for n in range(longest, enough - 1, -1) for token in own(n)]
    said += [known[n - 1][tuple(context[-n:])] for n in range(min(len(known), len(context)), 0, -1)
             if tuple(context[-n:]) in known[n - 1]]
    if enough <= longest:
        said += [token for n in range(enough - 1, 0, -1) for token in own(n)]
    return list(dict.fromkeys(said))


@settings(deadline=None)
@given(TEXTS, tables(), trees(8), st.integers(1, 4), st.integers(1, 4))
def test_drafts_are_what_a_scan_of_the_text_and_the_tables_find(text, known, shape, enough, longest):
    drafter = NgramDrafter(numbered(known), enough, longest)
    cut = len(text) // 2  # the second half arrives token by token, as bonus tokens do
    drafter.start([torch.tensor(text[:cut], dtype=torch.long)])
    for token in text[cut:]:
        drafter.commit([[]], [token])
    paths = {(): []}
    for choice in sorted(shape.choices(), key=len):
        if choice[:-1] in paths:
            above = paths[choice[:-1]]
            said = scanned(text, text + above, known, enough, longest)
            if choice[-1] < len(said):
                paths[choice] = above + [said[choice[-1]]]
    (draft,) = drafter.propose(shape, None)
    assert dict(zip(draft.tree.choices(), draft.token_list[1:], strict=True)) == {
        choice: path[-1] for choice, path in paths.items() if choice}
    assert draft.token_list[0] == text[-1]


def test_what_was_accepted_is_known_from_then_on():
    drafter = NgramDrafter(NgramTables(({3: 2},), VOCABULARY), enough=1)
    drafter.start([torch.tensor([0, 1]), torch.tensor([1])])
    drafter.commit([[], []], [3, 3])
    first, second = drafter.propose(shapes.chain(2), None)
    assert first.token_list == [3, 2] == second.token_list  # behind 2 nothing is known yet
    drafter.commit([[1], []], [0, 1])  # 0 1 3 2 0 and 1 3 1
    drafter.select([1])
    (draft,) = drafter.propose(shapes.chain(3), None)
    assert draft.token_list == [1, 3, 1, 3]


def test_replay_of_what_is_read_ahead_is_live_decoding_round_by_round():
    tokens, prompts, names = 40, small_models.prompts(6, (3, 9, 5, 1)), list("abcd")
    drafter = NgramDrafter(small_heads.tables(small_models.VOCABULARY))
    recorded = replay.record(MODEL, {"n": drafter}, prompts, names=names, kinds=names, max_new_tokens=tokens - 1,
                             ahead=6)
    for shape in map(named, ("chain:5", "kary:3@20", "expansion:1,3,2,1")):
        rounds = live.decode(MODEL, drafter, prompts, shape=shape, max_new_tokens=tokens).rounds
        walked = replay.chained(replay.walk(recorded, shape, "n"))
        found = sorted((done.row, done.position - 1, done.accepted) for done in rounds)
        assert found == list(zip(walked.rows.tolist(), walked.starts.tolist(), walked.accepted.tolist()))
        assert walked.accepted.sum() > 1, "otherwise nothing was tested"


@pytest.mark.parametrize("wrong", [dict(enough=0), dict(longest=0)])
def test_matches_of_no_tokens_are_refused(wrong):
    with pytest.raises(ValueError, match="matches of"):
        NgramDrafter(NgramTables((), VOCABULARY), **wrong)


# ------------------------------------------------------------------------------------------------------- counting


def by_counting(read, said, entries):
    """The tables by dictionaries: what stands behind each context, and how much more than shorter entries it names."""
    known = []
    for n, most in enumerate(entries, start=1):
        behind = defaultdict(Counter)
        for text, told in zip(read, said):
            for end in range(max(CONTEXT, n), len(text) + 1):
                behind[tuple(text[end - n : end])][told[end - 1]] += 1
        worth = {}
        for context, counts in behind.items():
            best = min(counts, key=lambda token: (-counts[token], token))
            shorter = next((known[k - 1][context[-k:]] for k in range(n - 1, 0, -1) if context[-k:] in known[k - 1]),
                           None)
            worth[context] = counts[best] - counts[shorter], best
        order = sorted(worth, key=lambda context: (-worth[context][0], key(context)))
        known.append({context: worth[context][1] for context in order[:most] if worth[context][0] >= 2})
    return known


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.tuples(*[st.integers(0, 20)] * 3))
def test_tables_keep_what_names_most_beyond_shorter_ones(seed, entries):
    rng = np.random.default_rng(seed)
    read = rng.integers(0, VOCABULARY, (3, 40)) * rng.integers(0, 2, (3, 40))
    said = (read + rng.integers(0, 2, (3, 40))) % VOCABULARY
    last = np.arange(read.size).reshape(read.shape)[:, CONTEXT - 1 :].reshape(-1)
    places = counting.Places(read.reshape(-1), last, said.reshape(-1)[last])
    made = counting.tables_of(places, entries, VOCABULARY)
    expected = numbered(by_counting(read.tolist(), said.tolist(), entries))
    assert made.orders == expected.orders
    named = [made.favourite([each % NUMBER[n] for n in (1, 2, 3)]) for each in places.keys(3, VOCABULARY).tolist()]
    assert counting.agreement(made, places) == pytest.approx(np.mean(np.array(named) == places.said))


def test_a_chat_models_tables_are_counted_in_its_answers(tmp_path, monkeypatch):
    greedy, sampled, said = [13, 8, 9, 2], [11, 12, 2], [3, 4, 2]
    rows = [(said, greedy, 0.0), (said, sampled, 0.7), ([5, 2], greedy, 0.0), ([6, 2], [11, 12, 2], 0.7)]
    monkeypatch.setattr(own_text, "TEXT", tmp_path)
    own_text.packed(rows * 3).save(own_text.path_of("t"))
    pair = SimpleNamespace(tokenizer=Chat(), vocabulary=small_models.VOCABULARY)
    monkeypatch.setattr(counting, "load_pair", lambda name, **settings: pair)
    monkeypatch.setattr(counting, "HELD_OUT_SHARE", 1 / 3)
    made = counting.make("t", tmp_path)
    assert [made.orders[0][token] for token in (13, 8, 9, 11, 12)] == [8, 9, 2, 12, 2]
    assert 5 not in made.orders[0] and 3 not in made.orders[0], "neither template nor turns are learned"
    folder = tmp_path / "heads" / "t" / "ngrams"
    assert ngrams.load(folder, MODEL).orders == made.orders
    assert json.loads((folder / "config.json").read_text())["held_out_named"] == {"answers": 0.75}


def test_contexts_of_a_chat_model_reach_into_the_turn_before():
    tokens, writers = own_text.packed([([3, 2], [7, 2], 0.0), ([4, 2], [8, 2], 0.0)]).stream([1], [])
    places = counting.written(tokens, writers, (own_text.GREEDY,))
    assert places.said.tolist() == [2, 8, 2], "the first answer's first token has too short a context"
    assert places.keys(3, 100).tolist() == [30207, 10402, 40208]


def test_the_largest_tables_of_four_tokens_have_numbers_of_64_bits():
    last = 49151
    places = counting.Places(np.full(9, last), np.arange(3, 9), np.full(6, 5))
    made = counting.tables_of(places, (0, 0, 0, 4), 49152)
    assert dict(made.orders[3]) == {49152**4 - 1: 5} and len(counting.ENTRIES) == 4
    size = sum(2 * (n + 1) * most for n, most in enumerate(counting.ENTRIES, start=1))
    assert size < 1.5 * 2**20


# ---------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path):
    ngrams.save(small_heads.tables(small_models.VOCABULARY), tmp_path, {"tokens": 7})
    return tmp_path


def test_tables_are_read_as_they_were_written(folder):
    read = ngrams.load(folder, MODEL)
    assert read.orders == small_heads.tables(small_models.VOCABULARY).orders and read.name_or_path == str(folder)
    drafter = make("ngrams:5", SimpleNamespace(target=MODEL), folder=folder)
    assert (drafter.enough, drafter.longest) == (5, 4)


@pytest.mark.parametrize("fault, said", [
    (lambda config, tensors: config.update(vocab_size=5), "vocab_size 5"),
    (lambda config, tensors: config.update(kind="eagle"), "holds 'eagle'"),
    (lambda config, tensors: tensors.pop("said.2"), "missing: said.2"),
    (lambda config, tensors: tensors.update(other=tensors["said.1"].clone()), "unexpected: other"),
    (lambda config, tensors: tensors.update({"said.1": tensors["said.1"][1:]}), r"not \[E, 1\]"),
    (lambda config, tensors: tensors.update({"said.1": tensors["said.1"].long() + 99}), "outside the vocabulary"),
])
def test_what_does_not_fit_is_refused_by_name(folder, fault, said):
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    fault(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=said):
        ngrams.load(folder, MODEL)


def test_what_cannot_be_read_is_refused(folder):
    (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="broken safetensors"):
        ngrams.load(folder, MODEL)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no safetensors"):
        ngrams.load(folder, MODEL)
    with pytest.raises(ValueError, match="64 bits"):
        NgramTables(({},) * 4, 150_000)
