"""The expected gain of a shape if acceptance depends only on a child's rank, at each budget and in the limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lib.trees import shapes

# A family's infinite tree as (branching of its first levels, children of the nodes below, those that branch again).
# A level of w children of which c branch again gives S(w) + S(c) A = A, with S(k) the acceptance of the first k ranks.
_ENDLESS = {
    "chain": lambda ranks: ((), 1, 1),
    "star": lambda ranks: ((), ranks, 0),
    "independent": lambda ranks, count: ((count,), 1, 1),
    "kary": lambda ranks, branching: ((), branching, branching),
    "comb": lambda ranks, branching: ((), branching, 1),
    "expansion": lambda ranks, *branching: (branching, 1, 1),
    "sparse": lambda ranks: ((), ranks, ranks),
    "optimal": lambda ranks: ((), ranks, ranks),
}


def ceiling(family: str, acceptance_by_rank: Sequence[float]) -> float:
    """The limit of a family's expected accepted length as its budget grows; inf if it has none.

    With P1 the acceptance of the favourite, a chain ends at P1 / (1 - P1), and k chains at most one higher
    (Sequoia, section 3). ValueError for an unknown family.
    """
    key, arguments = shapes.split_name(family)
    covered = np.concatenate(([0.0], np.cumsum(acceptance_by_rank)))
    ranks = len(acceptance_by_rank)
    first_levels, children, branching = _ENDLESS[key](ranks, *arguments)
    accepted, again = covered[min(children, ranks)], covered[min(branching, ranks)]
    length = accepted / (1 - again) if again < 1 else float("inf")
    for branches in reversed(first_levels):
        length = covered[min(branches, ranks)] * (1 + length)
    return float(length)


def compare(families: Iterable[str], budgets: Iterable[int],
            acceptances: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """A row for each model of acceptance, family and budget: the tree's form and its expected accepted length.

    Columns: model, family, budget (nodes), depth, leaves, accepted (draft tokens per round), rate (accepted / budget),
    gain (accepted, minus that of the budget before), of_optimal (accepted / that of the optimal tree).
    """
    budgets = sorted(set(budgets))
    rows = []
    for model, acceptance in acceptances.items():
        best = {n: shapes.expected_accepted(shapes.optimal(acceptance, n), acceptance) for n in budgets}
        for family in families:
            before = 0.0
            for budget in budgets:
                tree = shapes.at_budget(family, budget, acceptance=acceptance)
                accepted = shapes.expected_accepted(tree, acceptance)
                rows.append((model, family, budget, tree.max_depth, len(tree.leaves), accepted, accepted / budget,
                             accepted - before, accepted / best[budget]))
                before = accepted
    return pd.DataFrame(rows, columns=["model", "family", "budget", "depth", "leaves", "accepted", "rate", "gain",
                                       "of_optimal"])


def saturates_at(rows: pd.DataFrame, acceptances: Mapping[str, Sequence[float]], share: float = 0.95) -> pd.DataFrame:
    """A row for each model and family of `compare`: its limit, and the first budget that reaches `share` of it.

    Columns: model, family, ceiling (draft tokens per round), budget (missing if no compared budget reaches it).
    """
    saturated = []
    for (model, family), line in rows.groupby(["model", "family"], sort=False):
        limit = ceiling(family, acceptances[model])
        enough = line.loc[line["accepted"] >= share * limit, "budget"]
        saturated.append((model, family, limit, enough.min() if len(enough) else pd.NA))
    return pd.DataFrame(saturated, columns=["model", "family", "ceiling", "budget"]).astype({"budget": "Int64"})


def gain_by_doubling(budgets: Sequence[int], accepted: Sequence[float]) -> tuple[float, float]:
    """The tokens per round that each doubling of the budget adds, by a fitted straight line, and the share of the
    variance that the line explains.
    """
    doublings = np.log2(np.asarray(budgets, dtype=float))
    return float(np.polyfit(doublings, accepted, 1)[0]), float(np.corrcoef(doublings, accepted)[0, 1] ** 2)
