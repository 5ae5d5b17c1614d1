"""The rank paths of a trace as a trie that is expanded on demand, and the tree of the most frequent ones.

A round follows the path of ranks from its start. A node of the trie holds the starts that share its path, so replaying
a tree looks at each node once, and at each start as often as it accepts.
"""

import heapq
from math import inf
from weakref import WeakKeyDictionary

import numpy as np

from lib.replay.trace import Trace
from lib.trees.tree import ROOT, Tree

MOST_RANK = 64  # ranks below it are offered to trees
Path = tuple[int, ...]


class RankPaths:
    """The paths of S starts: start s has the ranks flat[first[s]], flat[first[s] + 1], ... up to a -1, its text's end.

    flat: int[P], -1 after every path. first: int64[S]. A node is a number; the root is 0. starts: by node the starts
    whose paths begin with the node's, int64 indices into `first`.
    """

    def __init__(self, flat: np.ndarray, first: np.ndarray):
        self.flat, self.first = flat, first
        self.starts, self.depth = [np.arange(len(first))], [0]
        self._children: list[dict[int, int] | None] = [None]

    def children(self, node: int) -> dict[int, int]:
        """The ranks that follow a path, the smallest first, and the node of each."""
        if self._children[node] is None:
            starts, depth = self.starts[node], self.depth[node]
            ranks = self.flat[self.first[starts] + depth]
            order = np.argsort(ranks, kind="stable")
            ranks, children = ranks[order], {}
            edges = np.flatnonzero(np.diff(ranks, prepend=-1))  # where another rank begins; paths that end are before
            for rank, group in zip(ranks[edges].tolist(), np.split(starts[order], edges)[1:]):
                children[rank] = len(self.starts)
                self.starts.append(group)
                self.depth.append(depth + 1)
                self._children.append(None)
            self._children[node] = children
        return self._children[node]

    def count(self, node: int) -> int:
        """How many starts have this path."""
        return len(self.starts[node])

    def ends(self, tree: Tree) -> np.ndarray:
        """int64[S]: the last node of the tree that a round accepts at each start, in the order of `first`."""
        ends, nodes = np.zeros(len(self.first), dtype=np.int64), [ROOT]  # of the trie, -1 for a path that no start has
        for tree_node, (parent, rank) in enumerate(zip(tree.parents[1:].tolist(), tree.rank[1:].tolist()), 1):
            node = -1 if nodes[parent] < 0 else self.children(nodes[parent]).get(rank, -1)
            nodes.append(node)
            if node > ROOT:  # parents come first, so the deepest node remains
                ends[self.starts[node]] = tree_node
        return ends


_CACHE: WeakKeyDictionary[Trace, dict[str | None, RankPaths]] = WeakKeyDictionary()


def rank_paths(trace: Trace, drafter: str | None = None) -> RankPaths:
    """The paths of all starts before the limit, row by row; cached with the trace."""
    cached = _CACHE.setdefault(trace, {})
    if drafter not in cached:
        flat, first = windows(trace.ranks[next(iter(trace.ranks)) if drafter is None else drafter])
        cached[drafter] = RankPaths(flat, first[trace.before_limit])
    return cached[drafter]


def windows(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks [N, L] or [N, L, D] in one row, -1 after each path, and where each start's path begins, int64[N, L]."""
    rows, length = ranks.shape[:2]
    path = ranks if ranks.ndim == 2 else ranks.reshape(rows * length, -1)
    flat = np.pad(path, ((0, 0), (0, 1)), constant_values=-1)
    index = np.arange(flat.size, dtype=np.int64).reshape(flat.shape)
    return flat.ravel(), index[:, :-1] if ranks.ndim == 2 else index[:, 0].reshape(rows, length)


def most_frequent_paths(trace: Trace, budget: int, drafter: str | None = None, *,
                        most_depth: float = inf) -> list[tuple[Path, int]]:
    """Up to `budget` rank paths of at most `most_depth` ranks below MOST_RANK, with the number of starts that match
    each, the most frequent first; ties go to the shallower path, then to the better ranks.
    """
    trie, chosen = rank_paths(trace, drafter), []
    frontier: list[tuple[int, int, Path, int]] = [(0, 0, (), ROOT)]
    while frontier and len(chosen) <= budget:
        negative_count, depth, path, node = heapq.heappop(frontier)
        chosen.append((path, -negative_count))
        for rank, child in trie.children(node).items():
            if rank < MOST_RANK and depth < most_depth:
                heapq.heappush(frontier, (-trie.count(child), depth + 1, (*path, rank), child))
    return chosen[1:]


def frequent(trace: Trace, budget: int, drafter: str | None = None) -> Tree:
    """The tree of the `budget` most frequent rank paths; if the trace has fewer, chains of favourites fill it up.

    It is the best static tree where rounds start uniformly over the transitions: the mean accepted length is the sum of
    the frequencies of its nodes' rank paths, and a child's is never above its parent's. Chained rounds weigh starts
    differently, and the gain is in sample, so that it has to be judged on other prompts.
    """
    paths = [path for path, _ in most_frequent_paths(trace, budget, drafter)]
    chosen = set(paths)
    while len(paths) < budget:  # the favourite below the deepest favourite is always free
        chain = (0,) * next(depth for depth in range(1, budget + 1) if (0,) * depth not in chosen)
        paths.append(chain)
        chosen.add(chain)
    return Tree.from_choices(paths)
