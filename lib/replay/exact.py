"""Exact replay: the rounds that any static tree would have had on a trace, by array look-ups.

Under greedy verification the accepted path follows the target's own continuation. So the rank of the target's next
token among the drafter's candidates decides, position by position, whether the tree has that child. The same holds for
top-k trees under naive sampling, on a trace sampled at that temperature. If the proposal depends on where the round
started, each start has its own ranks, one for each depth; a deeper child is never accepted.
"""

from dataclasses import dataclass

import numpy as np

from lib.replay.rank_paths import rank_paths
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
    rows, starts = np.nonzero(np.arange(trace.tokens.shape[1] - 1)[None] < trace.lengths[:, None])
    kept = starts < trace.starts(tree.max_depth)[rows]
    nodes = rank_paths(trace, drafter).ends(tree)[kept]  # of every transition before the limit
    return Walk(rows[kept], starts[kept], tree.depth[nodes], nodes, np.full_like(nodes, tree.budget))


def accepted_lengths(trace: Trace, tree: Tree, drafter: str | None = None) -> np.ndarray:
    """The accepted length a of each of the `rounds`, int64[R]."""
    return rounds(trace, tree, drafter).accepted


def chained(all_starts: Walk) -> Walk:
    """Of the `rounds` of all starts those that follow one another, each after the bonus token of the one before."""
    return all_starts.select(chain_of(all_starts.accepted, np.bincount(all_starts.rows)))


def chain_of(accepted: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The starts of the chained rounds, as indices into accepted int64[R]; all rows step together. lengths: int64[N],
    the number of starts of each row.
    """
    end = np.cumsum(lengths)
    at, after, starts = end - lengths, np.arange(1, len(accepted) + 1) + accepted, []
    while len(at := at[remaining := at < end]):
        starts.append(at)
        at, end = after[at], end[remaining]
    return np.sort(np.concatenate(starts)) if starts else np.empty(0, dtype=np.int64)
