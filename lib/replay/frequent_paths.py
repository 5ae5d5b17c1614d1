"""The best static tree of a trace: the most frequent rank paths, found by replay alone and with no independence
assumption.

For rounds that start uniformly over the transitions of a trace, the mean accepted length is the sum over the tree's
nodes of how often that node's rank path is what the target says. A child's path is never more frequent than its
parent's, so that the n most frequent paths form a tree, and no tree of n nodes gains more on that trace: for every n
at once, and nested. Conditions: starts are uniform (chained rounds weigh them otherwise), enough tokens are left
behind each start, and the gain is in sample, so that it has to be judged on other prompts.
"""

import heapq

from lib.replay.rank_paths import ROOT, rank_paths
from lib.replay.trace import Trace
from lib.trees.tree import Tree

Path = tuple[int, ...]


def most_frequent_paths(
    trace: Trace, budget: int, drafter: str | None = None, *, most_rank: int = 64
) -> list[tuple[Path, int]]:
    """Up to `budget` rank paths with how many starts they match, the most frequent first; only starts before a loop
    count.

    Ties go to the shallower path, then to the better ranks. Paths that no start matches are left out; ranks from
    `most_rank` on count as no child.
    """
    known = rank_paths(trace, drafter, before_loops=True)
    frontier: list[tuple[int, int, Path, int]] = []

    def offer_children(path: Path, node: int) -> None:
        for rank, child in known.children(node).items():
            if rank < most_rank:
                heapq.heappush(frontier, (-known.count(child), len(path) + 1, (*path, rank), child))

    offer_children((), ROOT)
    found: list[tuple[Path, int]] = []
    while frontier and len(found) < budget:
        negative_count, _, path, node = heapq.heappop(frontier)
        found.append((path, -negative_count))
        offer_children(path, node)
    return found


def frequent(trace: Trace, budget: int, drafter: str | None = None) -> Tree:
    """The tree of the `budget` most frequent rank paths; where the trace has fewer, chains of favourites fill it up."""
    paths = [path for path, _ in most_frequent_paths(trace, budget, drafter)]
    known = set(paths)
    while len(paths) < budget:  # the favourite below the deepest favourite, which is always free
        chain = (0,) * next(depth for depth in range(1, budget + 1) if (0,) * depth not in known)
        paths.append(chain)
        known.add(chain)
    return Tree.from_choices(paths)
