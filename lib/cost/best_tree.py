"""The best static tree for the hardware: most tokens per second, from a trace and the cost of a round.

On a trace a tree yields 1 + the mean accepted length from uniform starts before a loop, and it costs `cost(tree)`
seconds. Candidates are the most frequent rank paths, limited by depth, at every budget, and the dynamic programme's
trees. Where a draft level costs the same at any width, the best candidate is the best of all static trees within the
limits on that trace: of the trees of n nodes and at most d levels, the n most frequent paths of depth at most d yield
most and cost no more. Where the cost depends on the width, there is no such guarantee.
"""

from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

import numpy as np

from lib import replay
from lib.replay import acceptance
from lib.replay.search import Path, most_frequent_paths
from lib.replay.trace import Trace
from lib.trees import shapes
from lib.trees.tree import Tree

FREQUENT, OPTIMAL = acceptance.FREQUENT, "optimal"
Cost = Callable[[Tree], float]  # seconds per round


@dataclass(frozen=True)
class Limits:
    """The largest tree allowed: drafted nodes, and depth (each level is one more forward pass of the drafter)."""

    nodes: int = 64
    depth: int = 8

    def __post_init__(self):
        if self.nodes < 0 or self.depth < 0:
            raise ValueError(f"limits are {self.nodes} nodes and depth {self.depth}: give 0 or more")


@dataclass(frozen=True)
class Choice:
    """A tree, its family, and the tokens per round and per second that it promises on the text it was chosen from."""

    family: str
    tree: Tree
    tokens: float
    speed: float


def best_on(trace: Trace, cost: Cost, limits: Limits, drafter: str | None = None) -> Choice:
    """The fastest candidate on the trace itself: chosen in sample, it promises too much."""
    return max(_choices(trace, [(trace, trace)], cost, limits, drafter), key=_by_speed)


def choose(trace: Trace, cost: Cost, limits: Limits, drafter: str | None = None) -> Choice:
    """The candidate whose family, budget and depth are fastest when grown on one half of the prompts and judged on the
    other, both ways; its tree is then grown on all prompts. With one prompt the same as `best_on`.
    """
    return max(_choices(trace, folds(trace), cost, limits, drafter), key=_by_speed)


def choose_each(trace: Trace, cost: Cost, limits: Limits, drafter: str | None = None) -> dict[int, Choice]:
    """As `choose`, for every budget that has a candidate: the fastest tree by budget, from 0 on."""
    best: dict[int, Choice] = {}
    for choice in _choices(trace, folds(trace), cost, limits, drafter):
        if choice.speed > best.setdefault(choice.tree.budget, choice).speed:
            best[choice.tree.budget] = choice
    return dict(sorted(best.items()))


def folds(trace: Trace) -> list[tuple[Trace, Trace]]:
    """(to grow trees from, to judge them on): every second prompt of each kind against the others, both ways."""
    names = list(dict.fromkeys(zip(trace.kinds, trace.prompts)))
    names.sort(key=lambda name: name[0])  # stable: prompts of one kind stand together, in their order
    odd = {prompt for place, (_, prompt) in enumerate(names) if place % 2}
    in_odd = np.array([prompt in odd for prompt in trace.prompts])
    if not in_odd.any():
        return [(trace, trace)]
    halves = trace.select(in_odd), trace.select(~in_odd)
    return [halves, halves[::-1]]


def mean_accepted(trace: Trace, tree: Tree, drafter: str | None = None) -> float:
    """The mean accepted length from uniform starts before a loop; 0 where there are none."""
    return float(node_shares(trace, tree, drafter)[1:].sum())


def node_shares(trace: Trace, tree: Tree, drafter: str | None = None) -> np.ndarray:
    """float[m]: the share of starts before a loop from which each node is accepted."""
    walked = replay.walk(trace, tree, drafter)
    ends = walked.nodes[walked.starts < trace.loops[walked.rows]]
    return np.bincount(ends, minlength=tree.size) @ tree.mask / max(1, len(ends))


def paths_within(trace: Trace, limits: Limits, drafter: str | None = None, *, most_rank: int = 64) -> list[Path]:
    """The most frequent rank paths within the limits and of ranks below `most_rank`, the most frequent first."""
    count = limits.nodes
    while count:
        paths = [path for path, _ in most_frequent_paths(trace, count, drafter, most_rank=most_rank)]
        kept = [path for path in paths if len(path) <= limits.depth]
        if len(kept) >= limits.nodes or len(paths) < count:
            return kept[: limits.nodes]
        count *= 2
    return []


def powers_of_two(most: int) -> list[int]:
    """Budgets 1, 2, 4, .. and `most`; none for 0."""
    return sorted({*(2**power for power in range(most.bit_length())), most} - {0})


def _by_speed(choice: Choice) -> tuple[float, int]:
    return choice.speed, -choice.tree.budget  # of equally fast trees the smaller


def _choices(trace: Trace, judging: Sequence[tuple[Trace, Trace]], cost: Cost, limits: Limits,
             drafter: str | None) -> Iterator[Choice]:
    """Plain decoding, the most frequent paths at each limit on depth, the dynamic programme's trees."""
    nothing = Tree([-1])
    yield Choice(FREQUENT, nothing, 1.0, 1 / cost(nothing))
    for depth in range(1, limits.depth + 1):
        yield from _nested(trace, judging, cost, Limits(limits.nodes, depth), drafter)
    for budget in powers_of_two(limits.nodes):
        for depth in sorted({limits.depth, *(d for d in (2, 4) if d < limits.depth)}):
            yield from _programme(trace, judging, cost, Limits(budget, depth), drafter)


def _nested(trace: Trace, judging, cost: Cost, limits: Limits, drafter: str | None) -> Iterator[Choice]:
    """The trees of the first 1, 2, .. most frequent paths, all judged by one walk of the largest."""
    own = paths_within(trace, limits, drafter)
    gains = [_gains(judge, paths_within(grow, limits, drafter), drafter) for grow, judge in judging]
    for budget in range(1, min([len(own), *map(len, gains)]) + 1):
        tree = Tree.from_choices(own[:budget])
        tokens = 1 + float(np.mean([gain[budget - 1] for gain in gains]))
        yield Choice(FREQUENT, tree, tokens, tokens / cost(tree))


def _gains(judge: Trace, paths: list[Path], drafter: str | None) -> np.ndarray:
    """float[N]: the mean accepted length of the tree of the first 1 .. N paths."""
    tree = Tree.from_choices(paths)
    share = dict(zip(tree.choices(), node_shares(judge, tree, drafter)[1:]))
    return np.cumsum([share[path] for path in paths])


def _programme(trace: Trace, judging, cost: Cost, limits: Limits, drafter: str | None) -> Iterator[Choice]:
    """Sequoia's tree at one budget and depth limit; none where the ranks leave too few nodes."""
    def grown(part: Trace) -> Tree:
        return shapes.optimal(acceptance.acceptance_by_rank(part, drafter), limits.nodes, limits.depth)

    if limits.nodes > sum(acceptance.RANKS**level for level in range(1, limits.depth + 1)):
        return
    tree = grown(trace)
    tokens = 1 + float(np.mean([mean_accepted(judge, grown(grow), drafter) for grow, judge in judging]))
    yield Choice(OPTIMAL, tree, tokens, tokens / cost(tree))
