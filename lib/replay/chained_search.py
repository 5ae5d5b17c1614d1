"""A static tree improved on chained rounds: the tree decides where rounds start, which uniform starts do not see.

The most frequent rank paths are the best tree for starts that are uniform over a trace. Rounds that follow one another
start behind what the last one accepted: on the ranks 0, 0, 1, repeated, the trees {0, 0.0} and {0, 1} gain the same
from uniform starts, and yet a chained round of the first yields 3 tokens, of the second 2.
"""

from typing import Iterator

from lib.replay.exact import efficiency
from lib.replay.frequent_paths import Path
from lib.replay.rank_paths import ROOT, rank_paths
from lib.replay.trace import Trace
from lib.trees.tree import Tree

LEAST_GAIN = 1e-9  # of block efficiency; what is less is rounding


def improve(trace: Trace, tree: Tree, drafter: str | None = None, *, width: int = 8, most_rank: int = 64) -> Tree:
    """The tree after steepest ascent: one leaf at a time gives way to one node that is not there, while that raises
    the block efficiency of the trace's chained rounds (see `replay.efficiency`).

    Each step tries the `width` rarest leaves against the `width` most frequent absent children, of ranks below
    `most_rank`. The result is at least as good as `tree` on this trace, and a local optimum: it may miss the best tree,
    and it has seen the trace that it was chosen on, so that its gain has to be judged on other prompts. Where no
    chained round counts (all are cut short or loop), the tree comes back as it is.
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


def _swaps(
    trace: Trace, drafter: str | None, chosen: set[Path], width: int, most_rank: int
) -> Iterator[tuple[Path, Path]]:
    """Pairs of a leaf to leave out and a path to take in, whose parent stays; the most promising first."""
    tree = Tree.from_choices(chosen)
    known = rank_paths(trace, drafter, before_loops=True)
    place = dict(zip([(), *tree.choices()], known.nodes(tree)))
    parents = {path[:-1] for path in chosen}
    count = {path: known.count(node) if node >= 0 else 0 for path, node in place.items()}
    leaves = sorted((path for path in chosen if path not in parents), key=lambda path: (count[path], -len(path)))
    absent = sorted(
        (
            (-known.count(child), len(path) + 1, (*path, rank))
            for path, node in place.items()
            if node >= ROOT
            for rank, child in known.children(node).items()
            if rank < most_rank and (*path, rank) not in chosen
        )
    )
    for leaf in leaves[:width]:
        for _, _, path in absent[:width]:
            if path[:-1] != leaf:
                yield leaf, path
