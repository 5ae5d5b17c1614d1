"""Exact replay: the rounds that any static tree would have had on a trace, by array look-ups.

Under greedy verification the accepted path follows the target's own continuation. So the rank of the target's next
token among the drafter's candidates decides, position by position, whether the tree has that child: the round walks
down the tree along these ranks. The same holds for top-k trees under naive sampling, on a trace sampled at that
temperature. If the proposal depends on where the round started, each start has its own ranks, one for each depth; a
deeper child is never accepted.
"""

from dataclasses import dataclass

import numpy as np

from lib.replay.rank_paths import rank_paths, windows
from lib.replay.trace import Trace
from lib.trees.tree import Tree


@dataclass(frozen=True)
class Walk:
    """Rounds of one tree: each round's row of the trace, the transition at which it starts, and where it ends.

    rows, starts, accepted (a), nodes (the last accepted node, 0 for the root), drafted (n): int64[R].
    """

    rows: np.ndarray
    starts: np.ndarray
    accepted: np.ndarray
    nodes: np.ndarray
    drafted: np.ndarray

    def select(self, keep: np.ndarray) -> "Walk":
        """Some of the rounds, by bool[R] or int64."""
        return type(self)(**{name: values[keep] for name, values in vars(self).items()})


def rounds(trace: Trace, tree: Tree, drafter: str | None = None) -> Walk:
    """One round for every transition at which a round of the tree counts (see `Trace.starts`), row by row."""
    rows, starts = _transitions(trace, trace.lengths)
    kept = starts < trace.starts(tree.max_depth)[rows]
    nodes = rank_paths(trace, drafter).ends(tree)[kept]  # of every transition before the limit
    return Walk(rows[kept], starts[kept], tree.depth[nodes], nodes, np.full_like(nodes, tree.budget))


def accepted_lengths(trace: Trace, tree: Tree, drafter: str | None = None) -> np.ndarray:
    """The accepted length a of each of the `rounds`, int64[R]."""
    return rounds(trace, tree, drafter).accepted


def walk(trace: Trace, tree: Tree, drafter: str | None = None) -> Walk:
    """The plain form of `rounds`, and its oracle: all starts go down the tree together, one token at a time."""
    children = np.zeros((tree.size, tree.last_rank + 2), dtype=np.int64)  # by rank, 0 for none and for higher ranks
    children[tree.parents[1:], tree.rank[1:]] = np.arange(1, tree.size)
    flat, first = windows(trace.drafter_ranks(drafter))
    ranks = np.where(flat < 0, tree.last_rank + 1, np.minimum(flat, tree.last_rank + 1))
    rows, starts = _transitions(trace, trace.starts(tree.max_depth))
    position = first[rows, starts]
    accepted, nodes = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    active, node = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64)
    while len(active):
        node = children[node, ranks[position]]
        alive = node > 0
        active, node, position = active[alive], node[alive], position[alive] + 1
        accepted[active] += 1
        nodes[active] = node
    return Walk(rows, starts, accepted, nodes, np.full_like(nodes, tree.budget))


def _transitions(trace: Trace, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and transition of the first counts[n] transitions of each row n, row by row."""
    return np.nonzero(np.arange(trace.tokens.shape[1] - 1)[None] < counts[:, None])


def chained(all_starts: Walk) -> Walk:
    """The consecutive rounds from each row's first transition: each starts after the bonus token of the one before.

    `all_starts` is the result of `rounds` or `walk`.
    """
    return all_starts.select(chain_of(all_starts.accepted, np.bincount(all_starts.rows)))


def chain_of(accepted: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The starts of the chained rounds, as indices into accepted int64[R]; all rows step together. lengths: int64[N],
    the number of starts of each row.
    """
    end = np.cumsum(lengths)
    at, after, starts = end - lengths, np.arange(1, len(accepted) + 1) + accepted, []
    while len(at := at[left := at < end]):
        starts.append(at)
        at, end = after[at], end[left]
    return np.sort(np.concatenate(starts)) if starts else np.empty(0, dtype=np.int64)
