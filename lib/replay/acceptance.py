"""Acceptance tables of a trace: which rounds count, their sums by prompt, and the frequency of each rank."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.replay.exact import Walk, chained, rounds
from lib.replay.rank_paths import frequent, windows
from lib.replay.trace import Trace
from lib.trees import named
from lib.trees.names import FREQUENT
from lib.trees.tree import Tree

DEEPEST, RANKS = 64, 16  # depths and ranks from which trees are grown


def rounds_of(trace: Trace, tree: Tree, drafter: str) -> Walk:
    """The rounds that follow one another in each row."""
    return chained(rounds(trace, tree, drafter))


def tally_walk(trace: Trace, walk: Walk, more: Mapping[str, np.ndarray] | None = None) -> pd.DataFrame:
    """`tally` of a trace's rounds; more: further numbers [R]."""
    return tally(trace.prompts, trace.kinds, walk.rows, walk.starts >= trace.loops[walk.rows],
                 {"drafted": walk.drafted, "accepted": walk.accepted, **(more or {})})


def tally(prompts: Sequence[str], kinds: Sequence[str], rows: np.ndarray, looped: np.ndarray,
          counts: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Sums over rounds, one row per prompt and stretch: "before" the row's first loop, or "loop" within it.

    prompts, kinds: of each row of the trace. rows int64[R]: each round's row. looped bool[R]: whether the round starts
    within the loop. counts: numbers [R], integers or float, and "rounds", how often each counts, by default once. A
    stretch with nothing to count is left out.
    """
    counts = {"rounds": np.ones(len(rows), bool), **counts}
    names = sorted(set(prompts))
    number = {name: index for index, name in enumerate(names)}
    kind_of = dict(zip(reversed(prompts), reversed(kinds)))
    group = np.array([2 * number[name] for name in prompts], dtype=np.int64)[np.asarray(rows, dtype=np.int64)] + looped
    sums = {}
    for column, values in counts.items():
        total = np.bincount(group, values, minlength=2 * len(names))
        sums[column] = total if np.asarray(values).dtype.kind == "f" else total.astype(np.int64)
    frame = pd.DataFrame({"prompt": np.repeat(names, 2), "kind": np.repeat([kind_of[name] for name in names], 2),
                          "stretch": ["before", "loop"] * len(names), **sums})
    return frame[(frame[list(counts)] > 0).any(axis=1)].reset_index(drop=True)


def by_depth(trace: Trace, tree: Tree, walk: Walk) -> pd.DataFrame:
    """One row per prompt and depth, over rounds before a loop: all, those that accepted a node with children one level
    up (`reached`; after EOS no depth is), and those that accepted this depth.
    """
    counted = walk.select(walk.starts < trace.loops[walk.rows])
    parent = np.zeros(tree.size, dtype=bool)
    parent[tree.parents[1:]] = True
    open_end = parent[counted.nodes] & (counted.starts + counted.accepted < trace.ends[counted.rows])
    before, frames = np.zeros(len(counted.rows), dtype=bool), []
    for depth in range(1, tree.max_depth + 1):
        accepted = counted.accepted >= depth
        reached = accepted | ((counted.accepted == depth - 1) & open_end)
        frames.append(tally(trace.prompts, trace.kinds, counted.rows, before,
                            {"reached": reached, "accepted": accepted}))
    table = pd.concat([frame.assign(depth=depth) for depth, frame in enumerate(frames, 1)])
    columns = ["prompt", "kind", "depth", "rounds", "reached", "accepted"]
    return table.sort_values(["prompt", "depth"], ignore_index=True)[columns]


def by_node(tree: Tree, walk: Walk, loops: np.ndarray) -> pd.DataFrame:
    """One row per drafted node: its path of ranks ("0.0.1"), depth, rounds before a loop, and how many accepted it."""
    ends = walk.nodes[walk.starts < loops[walk.rows]]
    accepted = np.bincount(ends, minlength=tree.size) @ tree.mask.astype(np.int64)
    paths = [".".join(map(str, path)) for path in tree.choices()]
    return pd.DataFrame({"path": paths, "depth": tree.depth[1:], "rounds": len(ends), "accepted": accepted[1:]})


def by_rank(trace: Trace, drafter: str) -> pd.DataFrame:
    """One row per prompt: positions before a loop, how many have rank 0 .. 15, and the sum of alpha."""
    rows, starts = np.nonzero(trace.before_loops)
    ranks = trace.next_ranks(drafter)[rows, starts]
    alpha = trace.alpha[drafter][rows, starts].astype(float) if drafter in trace.alpha else np.full(len(rows), np.nan)
    table = tally(trace.prompts, trace.kinds, rows, np.zeros(len(rows), dtype=bool),
                  {"alpha_sum": alpha, **{f"rank_{rank}": ranks == rank for rank in range(RANKS)}})
    return table.rename(columns={"rounds": "positions"}).drop(columns="stretch")


def repetition(trace: Trace) -> pd.DataFrame:
    """One row per continuation: its transitions, whether it loops, and the transition at which the loop begins."""
    return pd.DataFrame({"prompt": trace.prompts, "kind": trace.kinds, "transitions": trace.lengths,
                         "loops": trace.loops < trace.lengths, "loop_start": trace.loops})


def acceptance_by_rank(trace: Trace, drafter: str) -> np.ndarray:
    """float[16]: how often the target's token has each rank, over all positions before a loop (Sequoia's p_k)."""
    return _frequencies(trace.next_ranks(drafter)[trace.before_loops])


def acceptance_by_depth_and_rank(trace: Trace, drafter: str) -> np.ndarray:
    """float[64, 16]: the same at each depth, among starts whose earlier tokens all had a rank below 16. Depths that
    fewer than 50 starts reach repeat the deepest one that has 50.
    """
    flat, first = windows(trace.ranks[drafter])
    alive, table = first[trace.before_loops], []
    for _ in range(DEEPEST):
        alive = alive[flat[alive] >= 0]
        if table and len(alive) < 50:
            break
        table.append(_frequencies(flat[alive]))
        alive = alive[flat[alive] < RANKS] + 1
    return np.stack(table + [table[-1]] * (DEEPEST - len(table)))


def family_tree(family: str, budget: int, trace: Trace, drafter: str) -> Tree:
    """A family at a budget, grown from the trace's ranks of the drafter if the family needs them."""
    if family == FREQUENT:
        return frequent(trace, budget, drafter)
    measured = {"sparse": acceptance_by_depth_and_rank, "optimal": acceptance_by_rank}.get(family)
    return named(f"{family}@{budget}", acceptance=measured(trace, drafter) if measured else None)


def evaluate(trace: Trace, drafter: str, trees: Sequence[tuple[str, int, Tree]]) -> pd.DataFrame:
    """`tally` of every (family, budget, tree) for one drafter, in one table."""
    frames = []
    for family, budget, tree in trees:
        rows = tally_walk(trace, rounds_of(trace, tree, drafter))
        frames.append(rows.assign(family=family, budget=budget, depth=tree.max_depth))
    labels = {key: trace.labels[key] for key in ("target", "temperature")}
    return pd.concat(frames, ignore_index=True).assign(drafter=drafter, **labels)


def _frequencies(ranks: np.ndarray) -> np.ndarray:
    return np.bincount(np.minimum(ranks, RANKS), minlength=RANKS + 1)[:RANKS] / max(1, len(ranks))
