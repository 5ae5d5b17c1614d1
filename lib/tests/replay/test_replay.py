"""Replay against a plain walk, and its bookkeeping of ends; most frequent rank paths against brute force."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import replay
from lib.replay.rank_paths import frequent, most_frequent_paths
from lib.trees import Tree, shapes


def synthetic(rng, rows=5, width=24, ranks=4, ahead=None, beyond=0, ended=True):
    """A trace of random ranks, of which the last `beyond` transitions of each row are past the limit; with `ahead`,
    that of a drafter whose ranks depend on where a round started.
    """
    ends = rng.integers(0, width + 1, rows)
    table = rng.integers(0, ranks, (rows, width, ahead or 1)).astype(np.int32)
    table[np.add.outer(np.arange(width), np.arange(ahead or 1))[None] >= ends[:, None, None]] = -1
    table = table if ahead else table[:, :, 0]
    tokens = rng.integers(0, 50, (rows, width + 1)).astype(np.int32)
    tokens[np.arange(width + 1) > ends[:, None]] = -1
    zeros, lengths = np.zeros((rows, width), np.float32), np.maximum(ends - beyond, 0)
    return replay.Trace(tokens, lengths, np.full(rows, ended), zeros, {"d": table}, {"d": zeros},
                        tuple(map(str, range(rows))), ("k",) * rows)


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


def met(ranks, start, length):
    """The ranks that a round starting there meets, whichever kind of drafter they are of."""
    return ranks[start:length] if ranks.ndim == 1 else [rank for rank in ranks[start] if rank >= 0]


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(0, 2**32 - 1), st.sampled_from([None, 1, 3, 6]), st.sampled_from([0, 1, 5, 21]),
       st.booleans())
def test_rounds_are_those_of_a_plain_walk(tree, seed, ahead, beyond, ended):
    """Rounds start before the limit, and unless EOS ended the text, where the whole tree and a bonus token fit."""
    recorded = synthetic(np.random.default_rng(seed), ahead=ahead, beyond=beyond, ended=ended)
    found = replay.rounds(recorded, tree)
    expected = [(row, start, *plain_walk(met(recorded.ranks["d"][row], start, end), tree))
                for row, (length, end) in enumerate(zip(recorded.lengths, recorded.ends))
                for start in range(length) if ended or start + tree.max_depth + 1 <= end]
    assert [*zip(found.rows, found.starts, found.accepted, found.nodes)] == expected
    assert np.array_equal(replay.accepted_lengths(recorded, tree), found.accepted)


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(0, 2**32 - 1))
def test_chained_rounds_follow_one_another(tree, seed):
    recorded = synthetic(np.random.default_rng(seed))
    found = replay.chained(replay.rounds(recorded, tree))
    expected = []
    for row, length in enumerate(recorded.lengths):
        start = 0
        while start < length:
            accepted, _ = plain_walk(recorded.ranks["d"][row, start:length], tree)
            expected.append((row, start, accepted))
            start += accepted + 1
    assert [*zip(found.rows, found.starts, found.accepted)] == expected


def all_trees(budget, ranks, depth):
    """Every tree of so many nodes with ranks below `ranks` and at most that depth."""
    paths = [path for length in range(1, depth + 1) for path in itertools.product(range(ranks), repeat=length)]
    for chosen in itertools.combinations(paths, budget):
        if all(path[:-1] == () or path[:-1] in chosen for path in chosen):
            yield Tree.from_choices(chosen)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_no_tree_gains_more_on_the_trace(seed, budget):
    made = synthetic(np.random.default_rng(seed), rows=3, width=10, ranks=3)
    made = replace(made, ranks={"d": np.where(made.ranks["d"] == 2, 5, made.ranks["d"])})  # ranks with a gap

    def gain(tree):
        return replay.accepted_lengths(made, tree).sum()

    renamed = (Tree.from_choices([tuple(5 if rank == 2 else rank for rank in path) for path in tree.choices()])
               for tree in all_trees(budget, 3, 3))
    grown = gain(frequent(made, budget))
    assert grown >= max(map(gain, renamed)), "deeper trees than brute force visits can only be better"
    listed = most_frequent_paths(made, 30)
    assert grown == sum(count for _, count in listed[:budget])
    assert listed == sorted(listed, key=lambda item: (-item[1], len(item[0]), item[0])), "ties: the shallower path"
    assert {*frequent(made, budget).choices()} < {*frequent(made, budget + 2).choices()}, "trees are nested"


def test_an_empty_trace_gives_a_chain():
    made = synthetic(np.random.default_rng(0), rows=2, width=4)
    empty = replace(made, lengths=np.zeros(2, int))
    assert frequent(empty, 3) == shapes.chain(3)
