"""Exact replay: the rounds that any static tree would have had on a trace, by array look-ups.

Under greedy verification the accepted path follows the target's own continuation. So the rank of the target's next
token among the drafter's candidates decides, position by position, whether the tree has that child. The same holds for
top-k trees under naive sampling, on a trace sampled at that temperature.
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
    rows, starts = np.nonzero(trace.before_limit)
    kept = starts < trace.starts(tree.max_depth)[rows]
    nodes = rank_paths(trace, drafter).ends(tree)[kept]  # of every transition before the limit
    return Walk(rows[kept], starts[kept], tree.depth[nodes], nodes, np.full_like(nodes, tree.budget))


def accepted_lengths(trace: Trace, tree: Tree, drafter: str | None = None) -> np.ndarray:
    """The accepted length a of each of the `rounds`, int64[R]."""
    return rounds(trace, tree, drafter).accepted


def chained(all_starts: Walk) -> Walk:
    """Of the `rounds` of all starts those that follow one another, each after the bonus token of the one before."""
    lengths = np.bincount(all_starts.rows)
    end = np.cumsum(lengths)
    current = end - lengths  # each row's round, as an index into `all_starts`
    after, chosen = np.arange(1, len(all_starts.rows) + 1) + all_starts.accepted, []
    while (remaining := current < end).any():  # all rows step together
        current, end = current[remaining], end[remaining]
        chosen.append(current)
        current = after[current]
    return all_starts.select(np.sort(np.concatenate([*chosen, np.empty(0, dtype=np.int64)])))
