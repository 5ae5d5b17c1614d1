"""The custom proposers against the drafters of lib on drawn texts, and on rows that move as vLLM moves them."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters import text_index
from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import FirstBranch
from lib.drafters.text_drafters import NgramDrafter, SuffixAutomatonDrafter, save_tables
from lib.engines.workers import draft_proposer
from lib.tests.drafters.test_text_drafters import VOCABULARY, numbered, tables
from lib.trees import shapes

WINDOW, ROWS = 64, 4
TEXTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=20, max_size=40)  # read from their first token on


def proposer(kind, tokens, **options):
    return getattr(draft_proposer, kind)(SimpleNamespace(
        additional_config={"draft_proposer": options},
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(max_model_len=WINDOW, get_vocab_size=lambda: VOCABULARY)))


def drafts_of(proposer, texts, sampled=None):
    """The drafts for rows of these texts, in a buffer with other tokens after them."""
    rows = np.full((ROWS, WINDOW), VOCABULARY - 1, dtype=np.int32)
    for row, text in zip(rows, texts):
        row[: len(text)] = text
    sampled = [[text[-1]] for text in texts] if sampled is None else sampled
    return proposer.propose(sampled, np.array([len(text) for text in texts], dtype=np.int32), rows, slot_mappings=None)


def first_branch(drafter, text, tokens):
    """The tokens of what a drafter of lib drafts for a chain, of a tree the favourites."""
    (kept := FirstBranch(drafter)).start([torch.tensor(text)])
    return kept.propose(shapes.chain(tokens), None)[0].token_list[1:]


def test_the_index_of_texts_needs_the_standard_library_alone():
    folder = Path(text_index.__file__).parent
    code = f"import sys; sys.path.append({str(folder)!r}); import text_index"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


@settings(deadline=None, max_examples=50)
@given(TEXTS, tables(), st.integers(1, 6), st.integers(1, 9))
def test_drafts_are_those_of_lib(tmp_path_factory, text, orders, tokens, step):
    counted, folder = numbered(orders), tmp_path_factory.getbasetemp() / "tables"
    save_tables(counted, folder, {})
    ngrams, sam = NgramDrafter(counted), SuffixAutomatonDrafter()
    for kind, drafter in {"Ngrams": ngrams, "Sam": sam, "Combined": CombinedDrafter(sam, ngrams)}.items():
        ours = proposer(kind, tokens, tables=folder)
        for end in range(1, len(text) + 1, step):
            assert drafts_of(ours, [text[:end]]) == [first_branch(drafter, text[:end], tokens)], kind


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_row_gets_the_draft_of_its_own_tokens_wherever_it_moves(data):
    """Requests of one beginning move between rows, leave for a while, end, and sample nothing in some rounds."""
    ours, requests = proposer("Sam", 4), {}
    for _ in range(data.draw(st.integers(1, 8))):
        ended = data.draw(st.sets(st.integers(0, 5), max_size=2))
        requests = {name: text for name, text in requests.items() if name not in ended}
        rows = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=ROWS, unique=True))
        sampled = [data.draw(st.lists(st.integers(0, 1), max_size=3)) for _ in rows]
        requests |= {name: requests.get(name, [0, 1, 0]) + new for name, new in zip(rows, sampled)}
        texts = [requests[name] for name in rows]
        assert drafts_of(ours, texts, sampled) == [first_branch(SuffixAutomatonDrafter(), text, 4) if new else []
                                               for text, new in zip(texts, sampled)]


def test_a_row_that_moves_is_not_read_again(monkeypatch):
    read, ours, a, b = [], proposer("Sam", 2), [0, 1, 2, 0, 1], [1, 1, 0, 1, 1, 0]
    index = SimpleNamespace(extend=read.append, draft=lambda parents, ranks: ([-1], [0]))
    monkeypatch.setattr(draft_proposer, "indexes", lambda kind, tables: [index])
    rounds = [([a, b], [a, b]),
              ([b + [1], a + [2]], [[1], [2]]),  # the rows swap
              ([b + [1], a + [2, 0]], [[], [0]]),  # one samples nothing
              ([a + [2, 2], a + [2, 0, 1]], [a + [2, 2], [1]]),  # one ends, another with a like text takes its row
              ([a + [2, 0, 1, 2]], [[2]]),  # the first one ends too, and the rows move up
              ([b + [1, 0], a + [2, 0, 1, 2, 0]], [b + [1, 0], [0]])]  # the second was preempted, and comes back
    for texts, new in rounds:
        drafts_of(ours, texts, [tokens[-1:] for tokens in new])
    assert read == [tokens for _, new in rounds for tokens in new if tokens]


def test_drafts_end_before_the_window_and_obey_the_schedule():
    ours, loop = proposer("Sam", 4, schedule=[[1, 1, 9], [2, 2, 1], [3, 3, 0]]), [0, 1, 2, 3] * WINDOW
    lengths = range(WINDOW - 6, WINDOW + 1)
    assert [len(drafts_of(ours, [loop[:length]])[0]) for length in lengths] == [4, 4, 3, 2, 1, 0, 0]
    assert [drafts_of(ours, [loop[:20]] * batch) for batch in (2, 3, 4)] == [[[0]] * 2, [[]] * 3, [[]] * 4]
    assert drafts_of(ours, [loop[:20]] * 3, [[3], [], []]) == [[0, 1, 2, 3], [], []], "one row drafts"


@pytest.mark.parametrize("kind, options, named", [
    ("Sam", {"shortes": 2}, "shortes"), ("Ngrams", {}, "tables is ''"), ("Ngrams", {"tables": "none"}, "'none'")])
def test_a_wrong_option_is_named(kind, options, named):
    with pytest.raises(ValueError, match=named):
        proposer(kind, 4, **options)
