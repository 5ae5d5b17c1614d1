"""Speed and budget by published formulas: Leviathan's walltime factor, SMART's marginal rule, the source blog's table.

They are shown beside replay and measured costs, which say what the trees that they choose are worth.
"""

from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np
import pandas as pd

from lib.cost.best_tree import Limits
from lib.cost.round_cost import RoundCost
from lib.replay import acceptance
from lib.replay.search import Path, most_frequent_paths
from lib.replay.trace import Trace
from lib.trees import shapes
from lib.trees.tree import Tree

SMART, LEVIATHAN, BLOG = "SMART's marginal rule", "Leviathan's formula", "source blog's table"


def leviathan_tokens(alpha: float, length: int) -> float:
    """Expected tokens per round of a chain: (1 - alpha^(length + 1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1).

    alpha: the chance that a token is accepted, taken to be the same everywhere and independent of the tokens before.
    """
    return float(length + 1) if alpha == 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain: its expected tokens over length * cost + 1 (Leviathan et al. 2023, theorem 3.8).

    cost: seconds of a drafter's step over a target's step. Checking any number of tokens is taken to cost one step.
    """
    return leviathan_tokens(alpha, length) / (length * cost + 1)


def smart_budget(tokens: Sequence[float], seconds: Sequence[float]) -> int:
    """The budget at which SMART's marginal rule stops: nodes are added while the next one's tokens over its seconds
    exceed the speed so far (arXiv 2604.09731).

    tokens, seconds: float[N + 1], of a round with n = 0 .. N nodes in the order in which they are added. A node that
    costs nothing is always added. Where gains fall and costs rise evenly, the result is the best budget; at a step in
    the costs, or before a level that pays only once it is filled, the rule stops too early.
    """
    for n in range(len(tokens) - 1):
        gain, price = tokens[n + 1] - tokens[n], seconds[n + 1] - seconds[n]
        if gain * seconds[n] <= tokens[n] * price:
            return n
    return len(tokens) - 1


@dataclass(frozen=True)
class Claim:
    """A row of the source blog's table: chain length, acceptance, speedup, share of target calls saved."""

    length: int
    acceptance: float
    speedup: float
    saved: float


CLAIMS = (Claim(3, 0.85, 1.8, 0.45), Claim(5, 0.78, 2.1, 0.58), Claim(8, 0.70, 2.3, 0.67), Claim(12, 0.62, 2.1, 0.72))


def blog_claims() -> pd.DataFrame:
    """The source blog's table, with the tokens per target call that follow from its columns; it gives no formula.

    tokens_by_calls: 1 / (1 - saved). tokens_by_share: 1 + acceptance * length, if acceptance is accepted over drafted.
    tokens_by_alpha: Leviathan's, if acceptance is a chance per token. draft_cost: the c at which Leviathan's walltime
    factor, with tokens_by_calls, gives the claimed speedup; below zero no drafter is cheap enough.
    """
    rows = [dict(vars(claim), tokens_by_calls=1 / (1 - claim.saved),
                 tokens_by_share=1 + claim.acceptance * claim.length,
                 tokens_by_alpha=leviathan_tokens(claim.acceptance, claim.length),
                 draft_cost=(1 / (1 - claim.saved) / claim.speedup - 1) / claim.length) for claim in CLAIMS]
    return pd.DataFrame(rows)


def blog_speedup(length: float) -> float:
    """The speedup that the blog claims for a draft length, linear between its rows; NaN outside them."""
    lengths = [claim.length for claim in CLAIMS]
    inside = lengths[0] <= length <= lengths[-1]
    return float(np.interp(length, lengths, [claim.speedup for claim in CLAIMS])) if inside else float("nan")


# ------------------------------------------------------------------------------------- the trees that formulas choose


@dataclass(frozen=True)
class Promise:
    """The tree that a formula would choose, and the speedup over plain decoding that the formula promises for it."""

    formula: str
    tree: Tree
    speedup: float


def promises(choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> list[Promise]:
    """What each formula would choose within the limits; one whose inputs the trace or the limits lack is left out.

    SMART is given the measured costs, Leviathan the mean alpha and the cost of a drafter's step, the blog nothing.
    """
    made = [smart(choosing, own, limits, drafter),
            leviathan(choosing, own, limits, drafter) if drafter in choosing.alpha else None, blog(limits)]
    return [promise for promise in made if promise]


def smart(choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> Promise:
    """The tree at which SMART's marginal rule stops: the node of the largest gain over cost is always added next."""
    starts = max(1, int(np.minimum(choosing.loops, choosing.lengths).sum()))
    gains = {path: count / starts for path, count in most_frequent_paths(choosing, 4 * limits.nodes, drafter)
             if len(path) <= limits.depth}
    trees, tokens, seconds = [Tree([-1])], [1.0], [own.plain]
    while trees[-1].budget < limits.nodes:
        path, price = _next_node(trees[-1], gains, own, seconds[-1])
        if path is None:
            break
        trees.append(Tree.from_choices([*trees[-1].choices(), path]))
        tokens.append(tokens[-1] + gains[path])
        seconds.append(seconds[-1] + price)
    stop = smart_budget(tokens, seconds)
    return Promise(SMART, trees[stop], tokens[stop] / seconds[stop] * own.plain)


def leviathan(choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> Promise:
    """The chain of the largest walltime factor; length 0, plain decoding, where no other length has one above 1."""
    alpha, step = mean_alpha(choosing, drafter), own.level(1) / own.plain
    return _best_chain(LEVIATHAN, lambda length: leviathan_speedup(alpha, length, step), limits)


def blog(limits: Limits) -> Promise | None:
    """The chain of the largest speedup in the blog's table; None where the limits allow none of its lengths."""
    return _best_chain(BLOG, blog_speedup, limits)


def mean_alpha(trace: Trace, drafter: str) -> float:
    """Leviathan's alpha: mean of sum min(p, q) over positions before a loop."""
    ranks = acceptance.by_rank(trace, drafter)
    return float(ranks["alpha_sum"].sum() / max(1, ranks["positions"].sum()))


def _best_chain(formula: str, speedup: Callable[[int], float], limits: Limits) -> Promise | None:
    """The chain within the limits for which a formula promises most; None where it knows none of the lengths."""
    promised = {length: speedup(length) for length in range(min(limits.nodes, limits.depth) + 1)}
    length = max((length for length in promised if not np.isnan(promised[length])), key=promised.get, default=None)
    return None if length is None else Promise(formula, shapes.chain(length), promised[length])


def _next_node(tree: Tree, gains: dict[Path, float], own: RoundCost, seconds: float) -> tuple[Path | None, float]:
    """Of the paths that can be added, the one of the largest gain over price, with its price; None where there is none.

    A price depends only on the path's depth and on whether its parent has children already.
    """
    there = set(tree.choices())
    parents = {choice[:-1] for choice in there}
    addable = [path for path in gains if path not in there and (len(path) == 1 or path[:-1] in there)]
    prices: dict[tuple[int, bool], float] = {}
    for path in addable:
        if (key := (len(path), path[:-1] in parents)) not in prices:
            prices[key] = max(own.round(Tree.from_choices([*there, path])) - seconds, 0.0)

    def price(path: Path) -> float:
        return prices[len(path), path[:-1] in parents]

    best = max(addable, key=lambda path: gains[path] / max(price(path), 1e-12), default=None)
    return best, price(best) if best else 0.0
