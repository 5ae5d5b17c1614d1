"""Replay against a plain walk, against live decoding round by round, and its bookkeeping of ends and loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay, shapes, trace
from lib.tree import Tree


def synthetic(rng, rows=5, width=24, ranks=4):
    lengths = rng.integers(0, width + 1, rows)
    table = rng.integers(0, ranks, (rows, width)).astype(np.int32)
    table[np.arange(width)[None] >= lengths[:, None]] = -1
    tokens = rng.integers(0, 50, (rows, width + 1)).astype(np.int32)
    zeros = np.zeros((rows, width), np.float32)
    return trace.Trace(
        tokens,
        lengths,
        lengths,
        zeros,
        zeros,
        {"d": table},
        {"d": zeros},
        {"d": zeros},
        tuple(map(str, range(rows))),
        ("k",) * rows,
    )


@st.composite
def trees(draw, most=20):
    choices = {()}
    for _ in range(draw(st.integers(0, most))):
        parent = draw(st.sampled_from(sorted(choices)))
        choices.add(parent + (draw(st.integers(0, 4)),))
    return Tree.from_choices(choices - {()})


def plain_walk(ranks, tree):
    """The accepted length of a round that meets these ranks, one node at a time."""
    node, accepted = 0, 0
    for rank in ranks:
        below = [child for child in tree.children(node) if tree.rank[child] == rank]
        if not below:
            break
        node, accepted = below[0], accepted + 1
    return accepted, node


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(0, 2**32 - 1))
def test_walk_is_the_plain_walk(tree, seed):
    recorded = synthetic(np.random.default_rng(seed))
    found = replay.walk(recorded, tree)
    expected = [
        (row, start, *plain_walk(recorded.ranks["d"][row, start:length], tree))
        for row, length in enumerate(recorded.lengths)
        for start in range(length)
    ]
    assert [*zip(found.rows, found.starts, found.accepted, found.nodes)] == expected
    left = recorded.lengths[found.rows] - found.starts
    assert np.array_equal(found.cut, found.accepted >= left)


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(0, 2**32 - 1))
def test_chained_rounds_follow_one_another(tree, seed):
    recorded = synthetic(np.random.default_rng(seed))
    found = replay.chained(replay.walk(recorded, tree), recorded.lengths)
    expected = []
    for row, length in enumerate(recorded.lengths):
        start = 0
        while start < length:
            accepted, _ = plain_walk(recorded.ranks["d"][row, start:length], tree)
            expected.append((row, start, accepted))
            start += accepted + 1
    assert [*zip(found.rows, found.starts, found.accepted)] == expected


def test_chained_efficiency_can_differ_where_uniform_starts_tie():
    ranks = np.tile([0, 0, 1], 40)[None].astype(np.int32)
    zeros = np.zeros(ranks.shape, np.float32)
    recorded = trace.Trace(
        np.zeros((1, 121), np.int32),
        np.array([120]),
        np.array([120]),
        zeros,
        zeros,
        {"d": ranks},
        {"d": zeros},
        {"d": zeros},
        ("p",),
        ("k",),
    )
    efficiency = {}
    for name, tree in {"chain": Tree.from_choices([(0,), (0, 0)]), "star": Tree.from_choices([(0,), (1,)])}.items():
        everywhere = replay.walk(recorded, tree)
        assert everywhere.accepted.mean() == pytest.approx(1, abs=0.01)
        efficiency[name] = replay.chained(everywhere, recorded.lengths).accepted.mean() + 1
    assert efficiency == {"chain": 3.0, "star": 2.0}


def test_rank_counts_what_scores_higher_and_ties_by_index():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0]]).repeat(4, 1)
    assert trace.rank_of(scores, torch.arange(4)).tolist() == [3, 0, 1, 2]


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
    assert trace.loop_start(tokens) == start


def test_a_saved_trace_comes_back(tmp_path):
    recorded = synthetic(np.random.default_rng(0))
    trace.save(recorded, tmp_path / "t.safetensors")
    read = trace.load(tmp_path / "t.safetensors")
    assert np.array_equal(read.ranks["d"], recorded.ranks["d"]) and read.kinds == recorded.kinds
    tree = shapes.parse("kary:2@16")
    assert np.array_equal(replay.accepted_lengths(read, tree), replay.accepted_lengths(recorded, tree))
    with pytest.raises(ValueError, match="no drafter 'x'; it has d"):
        replay.accepted_lengths(read, tree, "x")
