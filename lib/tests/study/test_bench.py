"""Prompts that choose and prompts that judge are alike, and the beginning of their order is a fair part of them."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models.prompts import PromptSet
from lib.study.bench import CHOOSING, JUDGING, PARTS, arranged, spread


def prompts_of(kinds: int, first_turns: int, later_turns: int) -> PromptSet:
    """Prompts of several kinds, each with so many first and later turns."""
    rows = [(f"{kind}-{number}", f"kind {kind}", torch.tensor([kind, number]), 1 + (number >= first_turns))
            for kind in range(kinds) for number in range(first_turns + later_turns)]
    return PromptSet(*map(tuple, zip(*rows)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 8), st.integers(0, 2**32), st.data())
def test_parts_are_disjoint_and_alike_in_kinds_and_turns(kinds, first_turns, later_turns, seed, data):
    count = first_turns + later_turns
    choose = data.draw(st.integers(0, count))
    judge = data.draw(st.integers(0, count - choose))
    texts, parts = arranged(prompts_of(kinds, first_turns, later_turns), choose, judge, np.random.default_rng(seed))
    assert len(set(texts.names)) == len(texts.names)
    for part, size in ((CHOOSING, choose), (JUDGING, judge)):
        rows = [row for row, own in enumerate(parts) if own == part]
        assert Counter(texts.kinds[row] for row in rows) == ({f"kind {kind}": size for kind in range(kinds)} if size else {})
        for kind in set(texts.kinds[row] for row in rows):
            later = sum(texts.turns[row] > 1 for row in rows if texts.kinds[row] == kind)
            assert abs(later - size * later_turns / count) < 2


def test_a_small_file_is_used_whole_and_halved():
    texts = prompts_of(3, 3, 1)
    chosen, parts = arranged(texts, 3, 4, np.random.default_rng(0), halved=12)
    assert sorted(chosen.names) == sorted(texts.names)
    assert Counter(zip(chosen.kinds, parts)) == {(f"kind {kind}", part): 2 for kind in range(3) for part in PARTS}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 2**32), st.floats(0, 1))
def test_every_beginning_holds_the_share_of_each_stratum(sizes, seed, share):
    strata = [stratum for stratum, size in enumerate(sizes) for _ in range(size)]
    order = spread(range(len(strata)), strata, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(strata)))
    beginning = Counter(strata[row] for row in order[: round(share * len(order))])
    for stratum, size in enumerate(sizes):
        assert abs(beginning[stratum] - share * size) < 1 + len(sizes)


def test_turns_of_a_conversation_and_equal_prompts_are_in_one_part():
    ids = [torch.tensor([row]) for row in (0, 1, 2, 2, 3, 4)]
    texts = PromptSet(("a turn 1", "a turn 2", "b", "c", "d", "e"), ("k",) * 6, tuple(ids), (1, 2, 1, 1, 1, 1))
    for seed in range(20):
        chosen, parts = arranged(texts, 2, 2, np.random.default_rng(seed))
        part_of = dict(zip(chosen.names, parts))
        assert part_of["a turn 1"] == part_of["a turn 2"] and part_of["b"] == part_of["c"]
    with pytest.raises(ValueError, match="k have fewer than 3 . 2 prompts"):
        arranged(texts, 3, 2, np.random.default_rng(0))
