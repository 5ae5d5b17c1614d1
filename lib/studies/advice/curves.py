"""How speed depends on the budget and the batch, and what formulas say of it: the rows behind the advice's figures."""

from typing import Sequence

import numpy as np
import pandas as pd

from lib import cost
from lib.cost import best_tree, formulas
from lib.cost.best_tree import Limits
from lib.cost.fit import Costs
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.studies.acceptance import recording
from lib.trees import shapes

OURS = "for the hardware"  # the fastest tree of each budget
RIVALS = ("chain", "kary:2", "kary:3")
REPLAY, LEVIATHAN, BLOG = "replay and measured costs", "Leviathan et al.", "source blog's table"


def over_budget(recorded: Trace, costs: Costs, drafter: str, *, batches: Sequence[int], prefix: float,
                budgets: Sequence[int], limits: Limits, generator: np.random.Generator) -> pd.DataFrame:
    """The columns of `cost.speeds` for chain, k-ary trees and the fastest tree of each budget, at every batch; with
    target, drafter, batch, prefix. All are held to the limit on depth; a chain longer than it is left out.
    """
    choosing, judged = recording.halves(recorded)
    parts = []
    for batch in batches:
        own = costs.at(recorded.about["target"], drafter, batch=batch, prefix=prefix)
        grown = best_tree.choose_each(choosing, own.round, limits, drafter)
        forest = [(OURS, n, grown[n].tree) for n in budgets if n in grown]
        forest += [(family, n, shapes.at_budget(family, n)) for family in RIVALS for n in budgets if n <= limits.nodes]
        forest = [one for one in forest if one[2].max_depth <= limits.depth]
        parts.append(cost.speeds(judged, drafter, forest, own, generator, batch=batch).assign(batch=batch))
    return pd.concat(parts, ignore_index=True).assign(target=recorded.about["target"], drafter=drafter, prefix=prefix)


def beside_formulas(recorded: Trace, costs: Costs, drafter: str, *, batches: Sequence[int], prefix: float,
                    lengths: Sequence[int], generator: np.random.Generator) -> pd.DataFrame:
    """Speedups of chains as replay and costs, Leviathan's formula and the source blog's table have them.

    Columns: target, drafter, batch, length, by, speedup, alpha (mean over the judging half), cost (a drafter's step
    over a target's step, measured). The blog's table knows neither batch nor drafter.
    """
    _, judged = recording.halves(recorded)
    rows = []
    for batch in batches:
        own = costs.at(recorded.about["target"], drafter, batch=batch, prefix=prefix)
        alpha, step = mean_alpha(judged, drafter), own.level(1) / own.plain
        forest = [("chain", length, shapes.chain(length)) for length in lengths]
        replayed = cost.speeds(judged, drafter, forest, own, generator, batch=batch)["speedup"]
        for length, speedup in zip(lengths, replayed):
            said = {REPLAY: speedup, LEVIATHAN: formulas.leviathan_speedup(alpha, length, step),
                    BLOG: formulas.blog_speedup(length)}
            rows += [dict(batch=batch, length=length, by=by, speedup=value, alpha=alpha, cost=step)
                     for by, value in said.items()]
    return pd.DataFrame(rows).assign(target=recorded.about["target"], drafter=drafter)


def mean_alpha(trace: Trace, drafter: str) -> float:
    """Leviathan's alpha: mean of sum min(p, q) over positions before a loop."""
    ranks = acceptance.by_rank(trace, drafter)
    return float(ranks["alpha_sum"].sum() / max(1, ranks["positions"].sum()))
