"""Drafters of the text alone against scans of the whole text and plain counting; the tables' files."""

import json
from collections import Counter, defaultdict
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lib.drafters import make
from lib.drafters.drafter import merge
from lib.drafters.text_drafters import LookupDrafter, NgramDrafter, load_tables, save_tables
from lib.drafters.text_index import ENTRIES, NgramTables, SuffixAutomaton, count_tables
from lib.tests import small_heads, small_models
from lib.tests.replay.test_replay import trees
from lib.trees import named

VOCABULARY = 4
TEXTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
SHAPES = st.builds(lambda depth, budget: named(f"expansion:{','.join('2' * depth)}@{budget}"),
                   st.integers(1, 5), st.integers(0, 9))
MODEL = small_models.llama(3)


def draft_after(drafter, text, shape):
    """The draft after a text whose second half arrived token by token, as bonus tokens do."""
    half = len(text) // 2
    drafter.start([torch.tensor(text[:half], dtype=torch.long)])
    for token in text[half:]:
        drafter.commit([[]], [token])
    return drafter.propose(shape, None)[0]


def places(text, length):
    """Every place after an earlier occurrence of the text's last `length` tokens, by scanning."""
    return [end for end in range(length, len(text)) if text[end - length : end] == text[len(text) - length :]]


# ---------------------------------------------------------------------------------------- look-up, the suffix automaton


@settings(deadline=None)
@given(TEXTS, st.integers(1, 4), st.integers(0, 3), SHAPES)
def test_lookup_finds_what_a_scan_finds(text, shortest, more, shape):
    lengths = range(min(shortest + more, len(text) - 1), shortest - 1, -1)
    found = [text[end : end + shape.max_depth] for n in lengths for end in reversed(places(text, n))]
    draft = draft_after(LookupDrafter(shortest + more, shortest), text, shape)
    expected = merge(text[-1], found, shape.budget)
    assert draft.tree == expected.tree and draft.token_list == expected.token_list


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, 9), max_size=40))
def test_the_automaton_continues_what_a_scan_matches_with_every_token_that_followed(text):
    (automaton := SuffixAutomaton()).extend(text)
    matched = [n for n in range(len(text) - 1, 0, -1) if places(text, n) != places(text, n + 1)]
    ends = iter([len(text) - len(following) for following in automaton.continuations(len(text))])
    for n in matched:
        following = {text[end] for end in places(text, n)}
        noted, *others = islice(ends, 1 + len(following))
        assert {noted, *others} <= set(places(text, n)) and {text[end] for end in others} == following
    assert automaton.matched() == max(matched, default=0) and next(ends, None) is None
    states = [automaton.start]
    for state in states:
        states += [following for following in state.steps.values() if following not in states]
    assert len(states) <= 2 * len(text) + 1


# -------------------------------------------------------------------------------------------------------------- n-grams


def contexts(n):
    return st.tuples(*[st.integers(0, VOCABULARY - 1)] * n)


@st.composite
def tables(draw, orders=3):
    """The next token after contexts of each length, by the contexts themselves."""
    return [draw(st.dictionaries(contexts(n), st.integers(0, VOCABULARY - 1), max_size=8))
            for n in range(1, orders + 1)]


def numbered(orders):
    return NgramTables(tuple(orders), VOCABULARY)


def candidates(text, path, orders, enough, longest):
    """The tokens that may follow a path after a text, by scans from the end of the text; each once."""
    context = text + path

    def in_text(n):
        ends = (end for end in range(len(text) - 1, n - 1, -1) if text[end - n : end] == context[-n:])
        return [text[end] for end in ends][:1] if n <= len(context) else []

    found = [token for n in range(longest, enough - 1, -1) for token in in_text(n)]
    found += [orders[n - 1][tuple(context[-n:])] for n in range(min(len(orders), len(context)), 0, -1)
              if tuple(context[-n:]) in orders[n - 1]]
    if enough <= longest:
        found += [token for n in range(enough - 1, 0, -1) for token in in_text(n)]
    return list(dict.fromkeys(found))


@settings(deadline=None)
@given(TEXTS, tables(), trees(8), st.integers(1, 4), st.integers(1, 4))
def test_ngrams_are_what_a_scan_of_the_text_and_the_tables_find(text, orders, shape, enough, longest):
    paths = {(): []}
    for choice in sorted(shape.choices(), key=len):
        if choice[:-1] in paths:
            found = candidates(text, paths[choice[:-1]], orders, enough, longest)
            if choice[-1] < len(found):
                paths[choice] = paths[choice[:-1]] + [found[choice[-1]]]
    draft = draft_after(NgramDrafter(numbered(orders), enough, longest), text, shape)
    assert draft.token_list[0] == text[-1]
    assert dict(zip(draft.tree.choices(), draft.token_list[1:], strict=True)) == {
        choice: path[-1] for choice, path in paths.items() if choice}


def counted(text, indices, entries):
    """The tables by dictionaries of contexts, and what each entry predicts beyond the shorter ones."""
    orders = []
    for n, most in enumerate(entries, start=1):
        following = defaultdict(Counter)
        for index in indices:
            following[tuple(text[index - n : index])][text[index]] += 1
        gains = {}
        for context, counts in following.items():
            best = min(counts, key=lambda token: (-counts[token], token))
            shorter = next((orders[k - 1][context[-k:]] for k in range(n - 1, 0, -1)
                            if context[-k:] in orders[k - 1]), None)
            gains[context] = counts[best] - counts[shorter], best
        order = sorted(gains, key=lambda context: (-gains[context][0], context))
        orders.append({context: gains[context][1] for context in order[:most] if gains[context][0] >= 2})
    return tuple(orders)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), st.tuples(*[st.integers(0, 20)] * 3))
def test_tables_keep_what_predicts_most_of_the_answers_beyond_shorter_ones(dialogues, entries):
    text, answered = [], []
    for prompt, answer in dialogues:
        answered += range(len(text) + len(prompt), len(text) + len(prompt) + len(answer))
        text += prompt + answer
    made = count_tables(*zip(*dialogues) if dialogues else ([], []), VOCABULARY, entries)
    assert made.orders == counted(text, [index for index in answered if index >= 3], entries)
    assert sum(2 * (n + 1) * most for n, most in enumerate(ENTRIES, start=1)) < 1.5 * 2**20, "bytes of their files"


# ---------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path):
    save_tables(small_heads.tables(small_models.VOCABULARY), tmp_path, {"tokens": 7})
    return tmp_path


def test_tables_are_read_as_they_were_written(folder):
    drafter = make("ngrams:5", SimpleNamespace(target=MODEL), {"folder": folder})
    assert drafter.tables.orders == small_heads.tables(small_models.VOCABULARY).orders
    assert (drafter.enough, drafter.longest) == (5, 4)


@pytest.mark.parametrize("fault, message", [
    (lambda config, tensors: config.update(vocab_size=5), "holds 'ngrams' of a target with vocab_size 5"),
    (lambda config, tensors: config.update(kind="medusa"), "holds 'medusa'"),
    (lambda config, tensors: tensors.pop("said.2"), r"said.2 \[0\], not \[E, 2\]"),
    (lambda config, tensors: tensors.update({"said.1": tensors["said.1"][1:]}), r"not \[E, 1\]"),
    (lambda config, tensors: tensors.update({"said.1": tensors["said.1"].long() + 99}), "of tokens below 24"),
])
def test_tables_that_do_not_fit_are_refused_by_name(folder, fault, message):
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    fault(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load_tables(folder, MODEL)
