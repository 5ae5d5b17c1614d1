"""Replay against a plain walk, against live decoding round by round, and its bookkeeping of ends and loops; the most
frequent rank paths against brute force over all trees.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import models, replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.replay.rank_paths import frequent, most_frequent_paths, rank_paths
from lib.tests.live import decode
from lib.trees import Tree, named, shapes


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
    return replay.Trace(tokens, lengths, np.full(rows, ended), lengths, zeros, {"d": table}, {"d": zeros}, {"d": zeros},
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


def starts_of(paths, tree):
    """int64[m]: the number of starts that accept each node of a tree, the root included."""
    return np.array([paths.count(node) if node >= 0 else 0 for node in paths.nodes(tree)])


@settings(deadline=None, max_examples=40)
@given(trees(), st.integers(0, 2**32 - 1), st.sampled_from([None, 4]), st.booleans())
def test_a_tree_costs_its_own_nodes(tree, seed, ahead, before_loops):
    recorded = synthetic(np.random.default_rng(seed), ahead=ahead)
    recorded = replace(recorded, loops=recorded.lengths // 2)
    everywhere = replay.rounds(recorded, tree)
    keep = everywhere.starts < recorded.loops[everywhere.rows] if before_loops else everywhere.starts >= 0
    counts = starts_of(rank_paths(recorded, before_loops=before_loops), tree)
    assert np.array_equal(counts, np.bincount(everywhere.nodes[keep], minlength=tree.size) @ tree.mask)
    assert counts[1:].sum() == everywhere.accepted[keep].sum()


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


@pytest.mark.parametrize("name", ["small/tiny-small", "base/small"])
def test_a_shipped_pair_decodes_random_trees_as_replay_says(name):
    pair = models.load_pair(name, dtype="float64")  # where ranks do not tie to rounding
    texts = ("def add(a, b):\n    return", "The harbour at dawn was")
    ids = [pair.tokenizer(text, return_tensors="pt")["input_ids"][0] for text in texts]
    recorded = replay.record(pair.target, {"d": pair.draft_model}, ids, names="ab", kinds="kk", max_new_tokens=10,
                             beyond=10, eos_token_id=pair.eos_token_ids)
    rng = np.random.default_rng(len(name))
    for _ in range(2):
        tree = Tree([-1, *(int(rng.integers(0, size)) for size in range(1, 10))])
        done = decode(pair.target, LanguageModelDrafter(pair.draft_model), ids, shape=tree, max_new_tokens=11,
                      eos_token_id=pair.eos_token_ids)
        found = replay.chained(replay.rounds(recorded, tree))
        replayed = zip(found.rows.tolist(), found.starts.tolist(), found.accepted.tolist())
        assert [*replayed] == sorted((one.row, one.position - 1, one.accepted) for one in done.rounds)


# ------------------------------------------------------------------------------------------- most frequent rank paths


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
    renamed = (Tree.from_choices([tuple(5 if rank == 2 else rank for rank in path) for path in tree.choices()])
               for tree in all_trees(budget, 3, 3))
    best = max((replay.accepted_lengths(made, tree).sum() for tree in renamed), default=0)
    # deeper trees than brute force visits can only be better
    gain = replay.accepted_lengths(made, frequent(made, budget)).sum()
    assert gain >= best
    assert gain == sum(count for _, count in most_frequent_paths(made, budget))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 2]))
def test_trees_of_all_budgets_are_nested_and_beat_every_family(seed, ahead):
    made = synthetic(np.random.default_rng(seed), rows=30, width=20, ranks=4, ahead=ahead)
    grown = [frequent(made, budget) for budget in (1, 2, 5, 12)]
    assert all(set(small.choices()) <= set(large.choices()) for small, large in zip(grown, grown[1:]))
    assert [tree.budget for tree in grown] == [1, 2, 5, 12]
    for family in ("chain", "kary:2", "comb:3", "star"):
        rival = named(f"{family}@12")
        assert replay.accepted_lengths(made, grown[-1]).sum() >= replay.accepted_lengths(made, rival).sum()


def test_an_empty_trace_gives_a_chain():
    made = synthetic(np.random.default_rng(0), rows=2, width=4)
    empty = replace(made, lengths=np.zeros(2, int), loops=np.zeros(2, int))
    assert frequent(empty, 3) == shapes.chain(3)
