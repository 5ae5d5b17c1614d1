"""The acceptance study's arithmetic: which rounds count, what they add up to by prompt, and what a trace says of
ranks.
"""

from dataclasses import replace
from typing import Sequence

import numpy as np
import pandas as pd

from lib import replay
from lib.replay.frequent_paths import frequent
from lib.replay.rank_paths import windows
from lib.replay.trace import Trace
from lib.trees import shapes
from lib.trees.tree import Tree

CONTINUATION, REAL_TEXT = "continuation", "real-text starts"  # the protocols
FREQUENT = "frequent"  # the family of the most frequent rank paths, beside those of `shapes.FAMILIES`
DEEPEST = 64  # depths and ranks that trees may be grown from
RANKS = 16


def check_protocol(name: str) -> None:
    """ValueError for a name that is no protocol's."""
    if name not in (CONTINUATION, REAL_TEXT):
        raise ValueError(f"protocol is {name!r}; choose {CONTINUATION!r} or {REAL_TEXT!r}")


def rounds_of(trace: Trace, tree: Tree, drafter: str) -> replay.Walk:
    """The rounds that the trace's protocol has: one a row for real-text starts, chained ones for continuations.

    A real-text start looks ahead a fixed number of tokens. A round that accepts them all counts as such (it would be a
    bias to drop just the longest), so that there a is capped at the horizon; only EOS cuts a round short.
    """
    everywhere = replay.rounds(trace, tree, drafter)
    if trace.about["protocol"] != REAL_TEXT:
        return replay.chained(everywhere, trace.lengths)
    first = everywhere.select(everywhere.starts == 0)
    horizon = trace.tokens.shape[1] - 1
    return replace(first, cut=first.cut & (trace.lengths[first.rows] < horizon))


def tally(trace: Trace, tree: Tree, rounds: replay.Walk) -> pd.DataFrame:
    """One row a prompt and stretch: rounds, drafted and accepted tokens of uncut rounds, and how many rounds were cut.

    stretch: "before" the row's first loop, or "loop" within it.
    """
    names = sorted(set(trace.prompts))
    prompt = np.array([names.index(name) for name in trace.prompts], dtype=np.int64)[rounds.rows]
    looped = rounds.starts >= trace.loops[rounds.rows]
    key = prompt * 2 + looped
    full = ~rounds.cut
    size = 2 * len(names)
    counted = np.bincount(key[full], minlength=size)
    frame = pd.DataFrame(
        {
            "prompt": np.repeat(names, 2),
            "kind": np.repeat([trace.kinds[trace.prompts.index(name)] for name in names], 2),
            "stretch": ["before", "loop"] * len(names),
            "rounds": counted,
            "drafted": counted * tree.budget,
            "accepted": np.bincount(key[full], rounds.accepted[full], minlength=size).astype(int),
            "cut": np.bincount(key[~full], minlength=size),
        }
    )
    return frame[(frame.rounds > 0) | (frame.cut > 0)]


def by_depth(trace: Trace, tree: Tree, rounds: replay.Walk) -> pd.DataFrame:
    """One row a prompt and depth, over uncut rounds before a loop: all rounds, those at a node with children one
    level up (`reached`), and those that accepted this depth. Accepted / reached is the conditional acceptance,
    accepted / rounds the unconditional one.
    """
    keep = ~rounds.cut & (rounds.starts < trace.loops[rounds.rows])
    kept = rounds.select(keep)
    parent = np.zeros(tree.size, dtype=bool)
    parent[tree.parents[1:]] = True
    open_end = parent[kept.nodes]
    names = np.array(trace.prompts)[kept.rows]
    kinds = dict(zip(trace.prompts, trace.kinds))
    found = []
    for name in np.unique(names):
        a, ends = kept.accepted[names == name], open_end[names == name]
        for depth in range(1, tree.max_depth + 1):
            found.append(
                (
                    name,
                    kinds[name],
                    depth,
                    len(a),
                    int(((a >= depth) | ((a == depth - 1) & ends)).sum()),
                    int((a >= depth).sum()),
                )
            )
    return pd.DataFrame(found, columns=["prompt", "kind", "depth", "rounds", "reached", "accepted"])


def by_node(tree: Tree, rounds: replay.Walk, loops: np.ndarray) -> pd.DataFrame:
    """One row a drafted node: its path of ranks ("0.0.1"), its depth, all uncut rounds before a loop, and how many of
    them accepted it. `loops` int64[N] is the trace's.
    """
    ends = rounds.nodes[~rounds.cut & (rounds.starts < loops[rounds.rows])]
    accepted = np.bincount(ends, minlength=tree.size) @ tree.mask.astype(np.int64)
    paths = [".".join(map(str, path)) for path in tree.choices()]
    return pd.DataFrame({"path": paths, "depth": tree.depth[1:], "rounds": len(ends), "accepted": accepted[1:]})


def by_rank(trace: Trace, drafter: str) -> pd.DataFrame:
    """One row a prompt: positions before a loop, how many had the target's token at rank 0 .. 15, and the mean alpha.
    """
    ranks, valid = trace.next_ranks(drafter), _before_loops(trace)
    names = np.array(trace.prompts)
    kinds = dict(zip(trace.prompts, trace.kinds))
    rows = []
    for name in sorted(kinds):
        inside = valid & (names == name)[:, None]
        counts = np.bincount(np.minimum(ranks[inside], RANKS), minlength=RANKS + 1)[:RANKS]
        rows.append(
            {
                "prompt": name,
                "kind": kinds[name],
                "positions": int(inside.sum()),
                "alpha_sum": float(trace.alpha[drafter][inside].sum()) if drafter in trace.alpha else np.nan,
            }
            | {f"rank_{r}": int(c) for r, c in enumerate(counts)}
        )
    return pd.DataFrame(rows)


def repetition(trace: Trace) -> pd.DataFrame:
    """One row a continuation: its transitions, whether it loops, and from where."""
    return pd.DataFrame(
        {
            "prompt": trace.prompts,
            "kind": trace.kinds,
            "transitions": trace.lengths,
            "loops": trace.loops < trace.lengths,
            "loop_start": trace.loops,
        }
    )


def acceptance_by_rank(trace: Trace, drafter: str) -> np.ndarray:
    """float[16]: how often the target's token has each rank, over all positions before a loop (Sequoia's p_k)."""
    return _frequencies(trace.next_ranks(drafter)[_before_loops(trace)])


def acceptance_by_depth_and_rank(trace: Trace, drafter: str) -> np.ndarray:
    """float[64, 16]: the same at each depth of a round, among starts whose earlier tokens all had a rank below 16.

    Depths that fewer than 50 starts reach repeat the deepest one that has them.
    """
    flat, first = windows(trace.drafter_ranks(drafter))
    alive, table = first[_before_loops(trace)], []
    for _ in range(DEEPEST):
        alive = alive[flat[alive] >= 0]
        if table and len(alive) < 50:
            break
        table.append(_frequencies(flat[alive]))
        alive = alive[flat[alive] < RANKS] + 1
    return np.stack(table + [table[-1]] * (DEEPEST - len(table)))


def grown(family: str, budget: int, trace: Trace, drafter: str) -> Tree:
    """A family at a budget, where needed grown from what a trace says of the drafter's ranks."""
    if family == FREQUENT:
        return frequent(trace, budget, drafter)
    acceptance = {"sparse": acceptance_by_depth_and_rank, "optimal": acceptance_by_rank}.get(family)
    return shapes.at_budget(family, budget, acceptance=acceptance(trace, drafter) if acceptance else None)


def evaluate(trace: Trace, drafter: str, trees: Sequence[tuple[str, int, Tree]]) -> pd.DataFrame:
    """`tally` of every (family, budget, tree) for one drafter, under one another."""
    frames = [
        tally(trace, tree, rounds_of(trace, tree, drafter)).assign(family=family, budget=budget, depth=tree.max_depth)
        for family, budget, tree in trees
    ]
    return pd.concat(frames, ignore_index=True).assign(
        drafter=drafter, **{key: trace.about[key] for key in ("target", "protocol", "temperature")}
    )


def _before_loops(trace: Trace) -> np.ndarray:
    return np.arange(trace.tokens.shape[1] - 1)[None] < np.minimum(trace.loops, trace.lengths)[:, None]


def _frequencies(ranks: np.ndarray) -> np.ndarray:
    return np.bincount(np.minimum(ranks, RANKS), minlength=RANKS + 1)[:RANKS] / max(1, len(ranks))
