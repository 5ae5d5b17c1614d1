"""Replay: what any static tree would have done on a trace, exactly, by array look-ups.

Under greedy verification the accepted path follows the target's own continuation. So the rank of the target's next
token among the drafter's candidates decides, position by position, whether the tree has that child: walking the ranks
through the tree is the round. The same holds for top-k trees under naive sampling, on a trace sampled at that
temperature.
"""

from dataclasses import dataclass

import numpy as np

from lib.trace import Trace
from lib.tree import Tree


@dataclass(frozen=True)
class Walk:
    """Rounds of one tree: for each, its row of the trace, the transition it starts at, and where it ended.

    rows, starts, accepted (a), nodes (the last accepted node, 0 the root): int64[R]; cut bool[R]: the trace ended the
    round.
    """

    rows: np.ndarray
    starts: np.ndarray
    accepted: np.ndarray
    nodes: np.ndarray
    cut: np.ndarray

    def select(self, keep: np.ndarray) -> "Walk":
        """The rounds that `keep` bool[R] or int64 names."""
        return Walk(*(getattr(self, name)[keep] for name in ("rows", "starts", "accepted", "nodes", "cut")))


def child_table(tree: Tree) -> np.ndarray:
    """int64[m, r + 1]: the child of a node at a rank, 0 for none; the last column, for all higher ranks, is 0."""
    table = np.zeros((tree.size, int(tree.rank.max(initial=0)) + 2), dtype=np.int64)
    table[tree.parents[1:], tree.rank[1:]] = np.arange(1, tree.size)
    return table


def steps(trace: Trace, beyond: int, drafter: str | None = None) -> tuple[np.ndarray, int]:
    """The ranks that rounds meet, int64[N * width], row by row, and the width of a row; ranks from `beyond` on are
    `beyond`.

    A row has one place more than transitions, so that a walk that runs off its end meets a rank that no node has.
    """
    ranks = trace.drafter_ranks(drafter)
    padded = np.full((len(ranks), ranks.shape[1] + 1), beyond)
    np.copyto(padded[:, :-1], np.where(ranks < 0, beyond, np.minimum(ranks, beyond)))
    return padded.ravel(), padded.shape[1]


def walk(trace: Trace, tree: Tree, drafter: str | None = None) -> Walk:
    """Every transition of the trace as the start of a round, row by row."""
    table, lengths = child_table(tree), trace.lengths
    flat, width = steps(trace, table.shape[1] - 1, drafter)
    rows, starts = np.nonzero(np.arange(width)[None] < lengths[:, None])
    position = rows * width + starts
    accepted, nodes = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    active, node = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64)
    while len(active):
        node = table[node, flat[position]]
        alive = node > 0
        active, node, position = active[alive], node[alive], position[alive] + 1
        accepted[active] += 1
        nodes[active] = node
    return Walk(rows, starts, accepted, nodes, accepted >= lengths[rows] - starts)


def accepted_lengths(trace: Trace, tree: Tree, drafter: str | None = None) -> np.ndarray:
    """The accepted length a of a round that starts at each transition, int64[positions], row by row."""
    return walk(trace, tree, drafter).accepted


def chained(all_starts: Walk, lengths: np.ndarray) -> Walk:
    """The rounds that follow one another from each row's first transition: each starts behind the last one's bonus
    token.

    `all_starts` is what `walk` gave for the trace, `lengths` int64[N] its rows' transitions. For the exact block
    efficiency.
    """
    offset = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    running = np.flatnonzero(lengths > 0)
    at, found = np.zeros(len(running), dtype=np.int64), []
    while len(running):
        index = offset[running] + at
        found.append(index)
        at = at + all_starts.accepted[index] + 1
        alive = at < lengths[running]
        running, at = running[alive], at[alive]
    picked = np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
    return all_starts.select(picked)
