"""The best static tree of a trace, by replay alone and without an independence assumption.

For rounds that start uniformly over the transitions of a trace, the mean accepted length is the sum, over the tree's
nodes, of the frequency of the node's rank path. A child's path is never more frequent than its parent's, so the n most
frequent paths form a tree, and no tree of n nodes accepts more on that trace; the trees for all n are nested.
Conditions: starts are uniform (chained rounds weigh them differently), enough tokens follow each start, and the gain is
in sample, so it has to be judged on other prompts.

Chained rounds start after the tokens that the round before accepted, so the tree decides where rounds start: on the
ranks 0, 0, 1, repeated, the trees {0, 0.0} and {0, 1} gain the same from uniform starts, but a chained round of the
first yields 3 tokens, of the second 2. `improve` searches for such gains.
"""

import heapq
from typing import Iterator

from lib.replay.exact import efficiency
from lib.replay.rank_paths import ROOT, rank_paths
from lib.replay.trace import Trace
from lib.trees.tree import Tree

Path = tuple[int, ...]
LEAST_GAIN = 1e-9  # of block efficiency; smaller gains are rounding


def most_frequent_paths(trace: Trace, budget: int, drafter: str | None = None, *,
                        most_rank: int = 64) -> list[tuple[Path, int]]:
    """Up to `budget` rank paths with the number of starts that match each, the most frequent first.

    Only starts before a loop count. Ties go to the shallower path, then to the better ranks. Paths that no start
    matches and ranks from `most_rank` on are left out.
    """
    trie = rank_paths(trace, drafter, before_loops=True)
    frontier: list[tuple[int, int, Path, int]] = []

    def offer_children(path: Path, node: int) -> None:
        for rank, child in trie.children(node).items():
            if rank < most_rank:
                heapq.heappush(frontier, (-trie.count(child), len(path) + 1, (*path, rank), child))

    offer_children((), ROOT)
    chosen: list[tuple[Path, int]] = []
    while frontier and len(chosen) < budget:
        negative_count, _, path, node = heapq.heappop(frontier)
        chosen.append((path, -negative_count))
        offer_children(path, node)
    return chosen


def frequent(trace: Trace, budget: int, drafter: str | None = None) -> Tree:
    """The tree of the `budget` most frequent rank paths; if the trace has fewer, chains of favourites fill it up."""
    paths = [path for path, _ in most_frequent_paths(trace, budget, drafter)]
    chosen = set(paths)
    while len(paths) < budget:  # the favourite below the deepest favourite is always free
        chain = (0,) * next(depth for depth in range(1, budget + 1) if (0,) * depth not in chosen)
        paths.append(chain)
        chosen.add(chain)
    return Tree.from_choices(paths)


def improve(trace: Trace, tree: Tree, drafter: str | None = None, *, width: int = 8, most_rank: int = 64) -> Tree:
    """The tree after steepest ascent: one leaf at a time is replaced by one absent node, while this raises the block
    efficiency of the trace's chained rounds (see `replay.efficiency`).

    Each step tries the `width` rarest leaves against the `width` most frequent absent children, of ranks below
    `most_rank`. The result is at least as good as `tree` on this trace, and a local optimum: it may miss the best tree.
    It was chosen on this trace, so its gain has to be judged on other prompts. If no chained round counts
    (all loop), the result is `tree`.
    """
    chosen, best = set(tree.choices()), efficiency(trace, tree, drafter)
    while True:
        tried = {}
        for leaf, added in _swaps(trace, drafter, chosen, width, most_rank):
            swapped = frozenset(chosen - {leaf} | {added})
            tried[swapped] = efficiency(trace, Tree.from_choices(swapped), drafter)
        top = max(tried, key=tried.get, default=None)
        if top is None or not tried[top] > best + LEAST_GAIN:
            return Tree.from_choices(chosen)
        chosen, best = set(top), tried[top]


def _swaps(trace: Trace, drafter: str | None, chosen: set[Path], width: int,
           most_rank: int) -> Iterator[tuple[Path, Path]]:
    """Pairs of a leaf to remove and a path to add, whose parent stays; the most promising first."""
    tree = Tree.from_choices(chosen)
    trie = rank_paths(trace, drafter, before_loops=True)
    trie_node = dict(zip([(), *tree.choices()], trie.nodes(tree)))
    parents = {path[:-1] for path in chosen}
    count = {path: trie.count(node) if node >= 0 else 0 for path, node in trie_node.items()}
    leaves = sorted((path for path in chosen if path not in parents), key=lambda path: (count[path], -len(path)))
    absent = sorted((-trie.count(child), len(path) + 1, (*path, rank))
                    for path, node in trie_node.items()
                    if node >= ROOT
                    for rank, child in trie.children(node).items()
                    if rank < most_rank and (*path, rank) not in chosen)
    for leaf in leaves[:width]:
        for _, _, path in absent[:width]:
            if path[:-1] != leaf:
                yield leaf, path
