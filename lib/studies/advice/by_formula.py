"""What formulas would have chosen, each with the speedup that it promises: SMART's marginal rule, Leviathan's walltime
factor, the source blog's table. They stand beside the advice, which says what their trees are worth.
"""

from dataclasses import dataclass

import numpy as np

from lib.cost import formulas
from lib.cost.best_tree import Limits
from lib.cost.rounds import RoundCost
from lib.replay.frequent_paths import Path, most_frequent_paths
from lib.replay.trace import Trace
from lib.studies.advice.curves import mean_alpha
from lib.trees import shapes
from lib.trees.tree import Tree

SMART, LEVIATHAN, BLOG = "SMART's marginal rule", "Leviathan's formula", "source blog's table"


@dataclass(frozen=True)
class Promise:
    """The tree that a formula would choose, and the speedup over plain decoding that it promises of it."""

    what: str
    tree: Tree
    speedup: float


def promises(choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> list[Promise]:
    """What each formula would choose within the limits; one that needs what the trace or the limits lack is left out.

    SMART is given the measured costs, Leviathan the mean alpha and the cost of a drafter's step; the blog asks nothing.
    """
    found = [smart(choosing, own, limits, drafter),
             leviathan(choosing, own, limits, drafter) if drafter in choosing.alpha else None, blog(limits)]
    return [one for one in found if one]


def smart(choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> Promise:
    """The tree at which SMART's marginal rule stops: always the node that gains most for what it costs comes next."""
    starts = max(1, int(np.minimum(choosing.loops, choosing.lengths).sum()))
    known = {path: count / starts for path, count in most_frequent_paths(choosing, 4 * limits.nodes, drafter)
             if len(path) <= limits.depth}
    trees, tokens, seconds = [Tree([-1])], [1.0], [own.plain]
    while trees[-1].budget < limits.nodes:
        path, price = _next_node(trees[-1], known, own, seconds[-1])
        if path is None:
            break
        trees.append(Tree.from_choices([*trees[-1].choices(), path]))
        tokens.append(tokens[-1] + known[path])
        seconds.append(seconds[-1] + price)
    stop = formulas.smart_budget(tokens, seconds)
    return Promise(SMART, trees[stop], tokens[stop] / seconds[stop] * own.plain)


def leviathan(choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> Promise:
    """The chain of the largest walltime factor; of length 0, plain decoding, where no other has one above 1."""
    alpha, step = mean_alpha(choosing, drafter), own.level(1) / own.plain
    said = {length: formulas.leviathan_speedup(alpha, length, step) for length in range(_longest(limits) + 1)}
    best = max(said, key=said.get)
    return Promise(LEVIATHAN, shapes.chain(best), said[best])


def blog(limits: Limits) -> Promise | None:
    """The chain that its table praises most; None where the limits allow no length that it knows."""
    said = {length: formulas.blog_speedup(length) for length in range(_longest(limits) + 1)}
    known = {length: speedup for length, speedup in said.items() if not np.isnan(speedup)}
    best = max(known, key=known.get, default=None)
    return None if best is None else Promise(BLOG, shapes.chain(best), known[best])


def _longest(limits: Limits) -> int:
    return min(limits.nodes, limits.depth)


def _next_node(tree: Tree, known: dict[Path, float], own: RoundCost, seconds: float) -> tuple[Path | None, float]:
    """Of the paths that can be added the one of the largest gain over price, with its price; None where there is none.

    A price depends only on the path's depth and on whether its parent has children already.
    """
    there = set(tree.choices())
    parents = {choice[:-1] for choice in there}
    open_paths = [path for path in known if path not in there and (len(path) == 1 or path[:-1] in there)]
    prices: dict[tuple[int, bool], float] = {}
    for path in open_paths:
        if (what := (len(path), path[:-1] in parents)) not in prices:
            prices[what] = max(own.round(Tree.from_choices([*there, path])) - seconds, 0.0)

    def price(path: Path) -> float:
        return prices[len(path), path[:-1] in parents]

    best = max(open_paths, key=lambda path: known[path] / max(price(path), 1e-12), default=None)
    return best, price(best) if best else 0.0
