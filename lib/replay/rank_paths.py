"""The rank paths of a trace as a trie that grows where it is looked at: how often each occurs, and at which starts.

What a round meets is the path of ranks from its start on. Sorted, the starts that share a path stand side by side, so
that a node of the trie is an interval of them: a tree costs its own nodes, however many starts there are.
"""

from weakref import WeakKeyDictionary

import numpy as np

from lib.replay.trace import Trace
from lib.trees.tree import Tree

ROOT = 0


class RankPaths:
    """The paths of S starts: start s meets flat[first[s]], flat[first[s] + 1], ... up to a -1, where its text ends.

    flat int[P], -1 behind every path; first int64[S]. A node is a number, the root 0.
    """

    def __init__(self, flat: np.ndarray, first: np.ndarray):
        self.flat = flat
        self.order = _sorted_starts(flat, first)
        self.first = first[self.order]  # the sorted starts
        self.low, self.high, self.depth = [0], [len(first)], [0]
        self._children: list[dict[int, int] | None] = [None]

    @property
    def starts(self) -> int:
        """S, how many starts there are."""
        return len(self.first)

    def children(self, node: int) -> dict[int, int]:
        """The ranks that follow a path, the smallest first, with the node that each leads to."""
        found = self._children[node]
        if found is None:
            found = self._children[node] = self._expand(node)
        return found

    def count(self, node: int) -> int:
        """How many starts meet this path."""
        return self.high[node] - self.low[node]

    def nodes(self, tree: Tree) -> list[int]:
        """Where each node of a tree stands in the trie, -1 for a path that no start meets."""
        place = [ROOT]
        parents, ranks = tree.parents.tolist(), tree.rank.tolist()
        for parent, rank in zip(parents[1:], ranks[1:]):
            above = place[parent]
            place.append(-1 if above < 0 else self.children(above).get(rank, -1))
        return place

    def counts(self, tree: Tree) -> np.ndarray:
        """int64[m]: how many starts accept each node of a tree, the root included."""
        return np.array([self.count(node) if node >= 0 else 0 for node in self.nodes(tree)])

    def ends(self, tree: Tree) -> np.ndarray:
        """int64[S]: the last node of the tree that a round accepts at each start, in the order of `first`."""
        ends = np.zeros(self.starts, dtype=np.int64)
        for at, node in enumerate(self.nodes(tree)):
            if node > ROOT:  # parents come first, so that the deepest one stays
                ends[self.low[node] : self.high[node]] = at
        unsorted = np.empty_like(ends)
        unsorted[self.order] = ends
        return unsorted

    def _expand(self, node: int) -> dict[int, int]:
        low, high, depth = self.low[node], self.high[node], self.depth[node]
        ranks = self.flat[self.first[low:high] + depth]  # sorted, since all before them are equal
        edges = np.flatnonzero(ranks[1:] != ranks[:-1]) + 1
        bounds = [0, *edges.tolist(), high - low] if high > low else []
        found = {}
        for begin, end in zip(bounds, bounds[1:]):
            rank = int(ranks[begin])
            if rank >= 0:
                found[rank] = len(self.low)
                self.low.append(low + begin)
                self.high.append(low + end)
                self.depth.append(depth + 1)
                self._children.append(None)
        return found


_KNOWN: WeakKeyDictionary[Trace, dict[tuple[str | None, bool], RankPaths]] = WeakKeyDictionary()


def rank_paths(trace: Trace, drafter: str | None = None, *, before_loops: bool = False) -> RankPaths:
    """The paths of all starts of a trace, row by row; or of those before a loop alone. Kept as long as the trace is."""
    known = _KNOWN.setdefault(trace, {})
    key = drafter, before_loops
    if key not in known:
        flat, first = windows(trace.drafter_ranks(drafter))
        bound = np.minimum(trace.loops, trace.lengths) if before_loops else trace.lengths
        known[key] = RankPaths(flat, first[np.arange(first.shape[1])[None] < bound[:, None]])
    return known[key]


def windows(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks [N, L] or [N, L, D] as one row with a -1 behind each path, and where in it each start's path begins,
    int64[N, L].
    """
    rows, length = ranks.shape[:2]
    path = ranks if ranks.ndim == 2 else ranks.reshape(rows * length, -1)
    flat = np.pad(path, ((0, 0), (0, 1)), constant_values=-1)
    where = np.arange(flat.size, dtype=np.int64).reshape(flat.shape)
    return flat.ravel(), where[:, :-1] if ranks.ndim == 2 else where[:, 0].reshape(rows, length)


def _sorted_starts(flat: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The order in which the starts' paths are sorted, by doubling the length compared (Manber and Myers 1993)."""
    ended = flat < 0
    longest = int(np.diff(np.flatnonzero(ended), prepend=-1).max(initial=1))
    place = np.unique(flat, return_inverse=True)[1].reshape(-1)
    place[ended] = 0
    span = 1
    while span < longest:
        ahead = np.zeros_like(place)
        ahead[:-span] = place[span:]
        ahead[ended] = 0
        pair = place * (place.max() + 1) + ahead
        found = np.unique(pair, return_inverse=True)[1].reshape(-1)
        if found.max() == place.max():
            break
        place, span = found, 2 * span
    return np.argsort(place[first], kind="stable")
