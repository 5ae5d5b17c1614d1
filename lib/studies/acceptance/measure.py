"""The acceptance study: every family at every budget, grown from one half of a trace and replayed on the other."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib.lab import stats
from lib.replay import acceptance
from lib.replay.acceptance import CONTINUATION
from lib.replay.trace import Trace
from lib.studies.acceptance.recording import halves
from lib.trees import shapes
from lib.trees.tree import Tree


def forest(
    choosing: Trace, drafter: str, families: Sequence[str], budgets: Sequence[int]
) -> list[tuple[str, int, Tree]]:
    """Every family at every budget; grown families from the choosing part of the trace."""
    return [
        (family, budget, acceptance.grown(family, budget, choosing, drafter))
        for family in families
        for budget in budgets
    ]


def replay_all(
    recorded: Trace, families: Sequence[str], budgets: Sequence[int], depth_budget: int
) -> dict[str, pd.DataFrame]:
    """Tables of one trace, for all its drafters: `acceptance`, `rank`, and at one budget `depth` and `nodes`."""
    choosing, judged = halves(recorded)
    tables: dict[str, list[pd.DataFrame]] = {"acceptance": [], "depth": [], "nodes": [], "rank": []}
    about = {key: recorded.about[key] for key in ("target", "protocol", "temperature")}
    for drafter in recorded.ranks:
        trees = forest(choosing, drafter, families, budgets)
        tables["acceptance"].append(acceptance.evaluate(judged, drafter, trees))
        for family, budget, tree in trees:
            if budget == depth_budget:
                setting = dict(family=family, budget=budget, drafter=drafter, **about)
                rounds = acceptance.rounds_of(judged, tree, drafter)
                tables["depth"].append(acceptance.by_depth(judged, tree, rounds).assign(**setting))
                tables["nodes"].append(acceptance.by_node(tree, rounds, judged.loops).assign(**setting))
        tables["rank"].append(acceptance.by_rank(judged, drafter).assign(drafter=drafter, **about))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}


def by_target(pairs: Sequence) -> dict[str, list]:
    """Pairs grouped by their target's name: one recording of a target serves all its drafters."""
    groups: dict[str, list] = {}
    for pair in pairs:
        groups.setdefault(pair.target_name, []).append(pair)
    return groups


def room(pairs: Sequence, *, new_tokens: int, live_tokens: int, live_shapes: Sequence[str]) -> int | None:
    """Tokens that a prompt may have, so that its continuations fit the smallest window; None without a window."""
    windows = [pair.window for pair in pairs if pair.window]
    deepest = max((shapes.parse(shape).max_depth for shape in live_shapes), default=0)
    return min(windows) - max(new_tokens + 1, live_tokens + deepest) if windows else None


def repetition(traces: Sequence[Trace]) -> pd.DataFrame:
    """One row a continuation: whether and where it begins to loop."""
    return pd.concat(
        [
            acceptance.repetition(recorded).assign(
                **{key: recorded.about[key] for key in ("target", "protocol", "temperature")}
            )
            for recorded in traces
            if recorded.about["protocol"] == CONTINUATION
        ],
        ignore_index=True,
    )


def coverage(ranks: pd.DataFrame, by: Sequence[str], generator: np.random.Generator) -> pd.DataFrame:
    """How often the target's token is among the k best, for k = 1 .. 16, from the table `rank`; with intervals."""
    within = ranks[[f"rank_{r}" for r in range(acceptance.RANKS)]].cumsum(axis=1).to_numpy()
    long = [ranks[[*by, "prompt", "positions"]].assign(k=k + 1, covered=within[:, k]) for k in range(acceptance.RANKS)]
    return stats.summarise(pd.concat(long), [*by, "k"], "covered", "positions", generator, rounds="positions")


def where(rows: pd.DataFrame, **wanted) -> pd.DataFrame:
    """The rows in which every named column has the wanted value. ValueError where there are none."""
    keep = np.logical_and.reduce([rows[name] == value for name, value in wanted.items()])
    if not keep.any():
        raise ValueError(
            f"no row has {wanted}; there are " + "; ".join(f"{name}: {sorted(rows[name].unique())}" for name in wanted)
        )
    return rows[keep]
