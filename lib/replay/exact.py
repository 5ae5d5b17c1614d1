"""Replay: what any static tree would have done on a trace, exactly, by array look-ups.

Under greedy verification the accepted path follows the target's own continuation. So the rank of the target's next
token among the drafter's candidates decides, position by position, whether the tree has that child: walking the ranks
through the tree is the round. The same holds for top-k trees under naive sampling, on a trace sampled at that
temperature. Where a proposal depends on where the round started, each start has ranks of its own, one a depth; a child
deeper than those is never accepted.
"""

from dataclasses import dataclass

import numpy as np

from lib.replay.rank_paths import rank_paths, windows
from lib.replay.recording import record
from lib.replay.trace import Trace
from lib.trees.tree import Tree

__all__ = ["Walk", "accepted_lengths", "chain_of", "chained", "child_table", "efficiency", "record", "rounds", "walk"]


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


def rounds(trace: Trace, tree: Tree, drafter: str | None = None) -> Walk:
    """Every transition of the trace as the start of a round, row by row; `walk` finds the same, more slowly."""
    rows, starts = np.nonzero(np.arange(trace.tokens.shape[1] - 1)[None] < trace.lengths[:, None])
    nodes = rank_paths(trace, drafter).ends(tree)
    accepted = tree.depth[nodes]
    return Walk(rows, starts, accepted, nodes, accepted >= trace.lengths[rows] - starts)


def accepted_lengths(trace: Trace, tree: Tree, drafter: str | None = None) -> np.ndarray:
    """The accepted length a of a round that starts at each transition, int64[positions], row by row."""
    return tree.depth[rank_paths(trace, drafter).ends(tree)]


def walk(trace: Trace, tree: Tree, drafter: str | None = None) -> Walk:
    """The plain form of `rounds`, and its oracle: all starts go down the tree together, one token at a time."""
    table = child_table(tree)
    flat, first = windows(trace.drafter_ranks(drafter))
    met = np.where(flat < 0, table.shape[1] - 1, np.minimum(flat, table.shape[1] - 1))
    rows, starts = np.nonzero(np.arange(first.shape[1])[None] < trace.lengths[:, None])
    position = first[rows, starts]
    accepted, nodes = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    active, node = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64)
    while len(active):
        node = table[node, met[position]]
        alive = node > 0
        active, node, position = active[alive], node[alive], position[alive] + 1
        accepted[active] += 1
        nodes[active] = node
    return Walk(rows, starts, accepted, nodes, accepted >= trace.lengths[rows] - starts)


def child_table(tree: Tree) -> np.ndarray:
    """int64[m, r + 1]: the child of a node at a rank, 0 for none; the last column, for all higher ranks, is 0."""
    table = np.zeros((tree.size, int(tree.rank.max(initial=0)) + 2), dtype=np.int64)
    table[tree.parents[1:], tree.rank[1:]] = np.arange(1, tree.size)
    return table


def chained(all_starts: Walk, lengths: np.ndarray) -> Walk:
    """The rounds that follow one another from each row's first transition: each starts behind the last one's bonus
    token.

    `all_starts` is what `rounds` gave for the trace, `lengths` int64[N] its rows' transitions. For the exact block
    efficiency.
    """
    return all_starts.select(chain_of(all_starts.accepted, lengths))


def chain_of(accepted: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which starts the chained rounds have, as indices into accepted int64[positions]; all rows step together."""
    end = np.cumsum(lengths)
    at, following, found = end - lengths, np.arange(1, len(accepted) + 1) + accepted, []
    while len(at := at[left := at < end]):
        found.append(at)
        at, end = following[at], end[left]
    return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def efficiency(trace: Trace, tree: Tree, drafter: str | None = None) -> float:
    """Block efficiency τ: mean a + 1 over the chained rounds that start before a loop and are not cut short.

    NaN where there is none.
    """
    everywhere = rounds(trace, tree, drafter)
    kept = everywhere.select(chain_of(everywhere.accepted, trace.lengths))
    a = kept.accepted[~kept.cut & (kept.starts < trace.loops[kept.rows])]
    return float(a.mean()) + 1 if len(a) else float("nan")
