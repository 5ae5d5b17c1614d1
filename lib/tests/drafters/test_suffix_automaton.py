"""The suffix automaton against a scan of the whole text, and its drafter against look-up by the book."""

from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters.drafter import merge
from lib.drafters.suffix_automaton import SuffixAutomaton, SuffixAutomatonDrafter
from lib.trees import named

TEXTS = st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, 9), max_size=40)


def read(text, noting=False):
    """The automaton of a text; noting: which notes the last place of each longest match, as the drafter's does."""
    automaton = SuffixAutomaton()
    if noting:
        automaton.extend(text)
    else:
        for token in text:
            automaton.append(token)
    return automaton


def places(text, length):
    """Every place after an earlier occurrence of the text's last `length` tokens, by scanning."""
    return [end for end in range(length, len(text)) if text[end - length : end] == text[len(text) - length :]]


def scanned(text):
    """The endings at which the set of earlier places changes, longest first, with their first place."""
    found, before = [], []
    for length in range(len(text) - 1, 0, -1):
        ends = places(text, length)
        if ends != before:
            found.append((length, ends[0]))
        before = ends
    return found


def by_length(automaton):
    return [(length, [end for _, end in group]) for length, group in groupby(automaton.matches(), lambda pair: pair[0])]


@settings(deadline=None, max_examples=200)
@given(TEXTS)
def test_matches_are_those_of_a_scan(text):
    automaton = read(text)
    assert [(length, ends[0]) for length, ends in by_length(automaton)] == scanned(text)
    assert automaton.matched() == max((length for length, _ in scanned(text)), default=0)


@settings(deadline=None, max_examples=200)
@given(TEXTS, st.booleans())
def test_places_are_occurrences_and_show_every_token_that_followed(text, noting):
    matches = by_length(read(text, noting))
    assert [length for length, _ in matches] == [length for length, _ in scanned(text)]
    for length, ends in matches:
        assert set(ends) <= set(places(text, length))
        assert {text[end] for end in ends} == {text[end] for end in places(text, length)}
        assert len(ends) == 1 + len({text[end] for end in ends}), "each token once, after the noted place"


def test_the_longest_match_is_found_where_it_was_last():
    text = [1, 2, 5, 1, 2, 6, 1, 2]
    assert next(read(text).matches()) == (2, 2) and next(read(text, noting=True).matches()) == (2, 5)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_the_automaton_stays_linear(text):
    automaton = read(text)
    assert len(automaton.lengths) <= 2 * len(text) + 1
    assert sum(map(len, automaton.steps)) <= 3 * len(text) + 1


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
def test_the_drafter_merges_what_followed_the_matches(text, shortest, depth, budget):
    drafter, cut = SuffixAutomatonDrafter(shortest), len(text) // 2
    drafter.start([torch.tensor(text[:cut], dtype=torch.long)])
    for token in text[cut:]:
        drafter.commit([[]], [token])
    shape = named(f"expansion:{','.join('2' * depth)}@{budget}")
    (draft,) = drafter.propose(shape, None)
    matches = [match for match in read(text, noting=True).matches() if match[0] >= shortest]
    expected = merge(text[-1], [text[end : end + shape.max_depth] for _, end in matches], budget)
    assert draft.tree == expected.tree and torch.equal(draft.tokens, expected.tokens)
    if draft.tree.budget:  # accepted tokens become text, and are matched from then on
        path = list(draft.tree.paths()[0][1:])
        drafter.commit([path], [7])
        assert drafter.texts[0].tokens == text + draft.tokens[path].tolist() + [7]


def test_a_shortest_match_of_nothing_is_refused():
    with pytest.raises(ValueError, match="shortest match is 0"):
        SuffixAutomatonDrafter(0)
