"""What comes nearest to a tree in an engine that cannot express it: the fastest setting that it can."""

from typing import Callable, Iterator

from lib.cost import best_tree
from lib.cost.best_tree import Limits
from lib.cost.engines.forms import CHAIN, DYNAMIC, LEVELS, Dynamic, equal_levels
from lib.cost.engines.registry import Engine, Setting
from lib.replay.trace import Trace
from lib.trees import shapes
from lib.trees.tree import Tree


def nearest(engine: Engine, tree: Tree, choosing: Trace, cost: Callable[[Tree], float], limits: Limits,
            drafter: str | None = None) -> Setting:
    """The tree itself where the engine takes it, else the setting of its form that is fastest on the trace.

    Of a static tree with ranks too large, the fastest of what is left without them, the most frequent rank paths that
    the engine knows, and a favourite alone. A dynamic tree gets the static one's depth, width and nodes: how it grows
    is the engine's affair, and static replay cannot judge it.
    """
    if engine.form == DYNAMIC:
        return Dynamic.like(tree)
    if engine.form == CHAIN:
        candidates = [shapes.chain(length) for length in range(1, min(limits.nodes, limits.depth) + 1)]
        return fastest(candidates, choosing, cost, drafter)
    if engine.form == LEVELS:
        if equal_levels(tree) is not None:
            return tree
        return fastest([shapes.expansion(levels) for levels in branchings(limits)], choosing, cost, drafter)
    if tree.rank.max(initial=0) < engine.most_rank:
        return tree
    return fastest(_of_ranks_below(engine.most_rank, tree, choosing, limits, drafter), choosing, cost, drafter)


def _of_ranks_below(most_rank: int, tree: Tree, choosing: Trace, limits: Limits, drafter: str | None) -> list[Tree]:
    """Trees of some nodes that have no child of a larger rank."""
    left = [choice for choice in tree.choices() if max(choice) < most_rank]
    paths = best_tree.paths_within(choosing, limits, drafter, most_rank=most_rank)
    frequent = [paths[:nodes] for nodes in range(1, len(paths) + 1)]
    return [Tree.from_choices(choices) for choices in ([left] if left else []) + frequent + [[(0,)]]]


def fastest(candidates: list[Tree], choosing: Trace, cost: Callable[[Tree], float], drafter: str | None) -> Tree:
    """The tree of most tokens a second on the trace."""
    return max(candidates, key=lambda tree: (1 + best_tree.mean_accepted(choosing, tree, drafter)) / cost(tree))


def branchings(limits: Limits, most: int = 8) -> Iterator[list[int]]:
    """All <k1, k2, ..> with at most `most` children a node within the limits, whose levels do not widen with depth."""
    def below(levels: list[int], width: int, left: int) -> Iterator[list[int]]:
        for branches in range(1, min(most, levels[-1] if levels else most, left // width) + 1):
            own = [*levels, branches]
            yield own
            if len(own) < limits.depth:
                yield from below(own, width * branches, left - width * branches)

    return below([], 1, limits.nodes)
