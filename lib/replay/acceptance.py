"""Acceptance tables of a trace: which rounds count, their sums by prompt, and the frequency of each rank."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.replay.exact import Walk, chained, rounds
from lib.replay.rank_paths import frequent, windows
from lib.replay.trace import Trace
from lib.trees import named
from lib.trees.growth import Growth
from lib.trees.names import FREQUENT
from lib.trees.tree import Tree

DEEPEST, RANKS = 64, 16  # depths and ranks from which trees are grown


def rounds_of(trace: Trace, tree: Tree, drafter: str) -> Walk:
    """The rounds that follow one another in each row."""
    return chained(rounds(trace, tree, drafter))


def tally_walk(trace: Trace, walk: Walk, **counts: np.ndarray) -> pd.DataFrame:
    """`tally` of a trace's rounds; counts: further numbers [R]."""
    return tally(trace.prompts, walk.rows, drafted=walk.drafted, accepted=walk.accepted, **counts)


def tally(prompts: Sequence[str], rows: np.ndarray, **counts: np.ndarray) -> pd.DataFrame:
    """Sums over rounds, one row per prompt, those without rounds included.

    prompts: of each row of the trace. rows int64[R]: each round's row. counts: numbers [R], integers or float,
    and `rounds`, how often each counts, by default once.
    """
    sums = {}
    for name, values in {"rounds": np.ones(len(rows), bool), **counts}.items():
        total = np.bincount(np.asarray(rows, dtype=np.int64), values, minlength=len(prompts))
        sums[name] = total if np.asarray(values).dtype.kind == "f" else total.astype(np.int64)
    return pd.DataFrame({"prompt": list(prompts), **sums})


def by_depth(trace: Trace, tree: Tree, walk: Walk) -> pd.DataFrame:
    """One row per depth and prompt: all rounds, those that accepted a node with children one level up (`reached`; after
    EOS no depth is), and those that accepted this depth.
    """
    parent = np.zeros(tree.size, dtype=bool)
    parent[tree.parents[1:]] = True
    open_end = parent[walk.nodes] & (walk.starts + walk.accepted < trace.ends[walk.rows])
    frames = []
    for depth in range(1, tree.max_depth + 1):
        accepted = walk.accepted >= depth
        reached = accepted | ((walk.accepted == depth - 1) & open_end)
        frames.append(tally(trace.prompts, walk.rows, reached=reached, accepted=accepted).assign(depth=depth))
    return pd.concat(frames, ignore_index=True)


def by_quarter(trace: Trace, walk: Walk) -> pd.DataFrame:
    """One row per quarter of the text, 1 to 4, and prompt: the rounds that start in it, and their accepted tokens."""
    quarters = 1 + 4 * walk.starts // trace.lengths[walk.rows]
    frames = []
    for quarter in range(1, 5):
        within = walk.select(quarters == quarter)
        frames.append(tally(trace.prompts, within.rows, accepted=within.accepted).assign(quarter=quarter))
    return pd.concat(frames, ignore_index=True)


def by_node(tree: Tree, walk: Walk) -> pd.DataFrame:
    """One row per drafted node: its path of ranks ("0.0.1"), the rounds, and how many accepted it."""
    accepted = np.bincount(walk.nodes, minlength=tree.size) @ tree.mask.astype(np.int64)
    paths = [".".join(map(str, path)) for path in tree.choices()]
    return pd.DataFrame({"path": paths, "rounds": len(walk.nodes), "accepted": accepted[1:]})


def by_rank(trace: Trace, drafter: str) -> pd.DataFrame:
    """One row per prompt and rank: the positions before the limit, and at how many of them the next token has this
    rank; rank RANKS stands for all from there on.
    """
    rows, starts = np.nonzero(trace.before_limit)
    ranks = np.minimum(trace.next_ranks(drafter)[rows, starts], RANKS)
    frames = [tally(trace.prompts, rows, count=ranks == rank).assign(rank=rank)
              for rank in range(RANKS + 1)]
    return pd.concat(frames, ignore_index=True).rename(columns={"rounds": "positions"})


def acceptance_by_rank(trace: Trace, drafter: str) -> np.ndarray:
    """float[16]: how often the target's token has each rank, over all positions (Sequoia's p_k)."""
    return _frequencies(trace.next_ranks(drafter)[trace.before_limit])


def acceptance_by_depth_and_rank(trace: Trace, drafter: str) -> np.ndarray:
    """float[64, 16]: the same at each depth, among starts whose earlier tokens all had a rank below 16. Depths that
    fewer than 50 starts reach repeat the deepest one that has 50.
    """
    flat, first = windows(trace.ranks[drafter])
    alive, table = first[trace.before_limit], []
    for _ in range(DEEPEST):
        alive = alive[flat[alive] >= 0]
        if table and len(alive) < 50:
            break
        table.append(_frequencies(flat[alive]))
        alive = alive[flat[alive] < RANKS] + 1
    return np.stack(table + [table[-1]] * (DEEPEST - len(table)))


def tree_of(name: str, trace: Trace, drafter: str) -> Tree | Growth:
    """The tree or growth rule of a name (see `trees.named`). "frequent@16", "optimal@16" and "sparse@16" are grown from
    the trace's ranks of the drafter.
    """
    family, _, budget = name.partition("@")
    if family == FREQUENT:
        return frequent(trace, int(budget), drafter)
    measured = {"sparse": acceptance_by_depth_and_rank, "optimal": acceptance_by_rank}.get(family)
    return named(name, acceptance=measured(trace, drafter) if measured else None)


def _frequencies(ranks: np.ndarray) -> np.ndarray:
    return np.bincount(np.minimum(ranks, RANKS), minlength=RANKS + 1)[:RANKS] / max(1, len(ranks))
