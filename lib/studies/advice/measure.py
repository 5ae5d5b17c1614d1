"""The tables of the advice: the costs of all drafters that compete for a target, speed over budget and batch, the same
with the costs of larger pairs, and what formulas say of chains. `lib.cost.advice` makes the recommendation itself.
"""

from typing import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib import cost
from lib.cost import best_tree, formulas
from lib.cost.best_tree import Limits
from lib.cost.fit import Costs
from lib.cost.round_cost import RoundCost
from lib.drafters.heads.store import check_shipped
from lib.drafters.registry import make
from lib.lab import processor
from lib.models.checks import dtypes_of
from lib.models.load import load_pair
from lib.replay.trace import Trace
from lib.studies.acceptance import recording
from lib.studies.acceptance.measure import by_target
from lib.trees import shapes

OURS = "for the hardware"  # the fastest tree of each budget
RIVALS = ("chain", "kary:2", "kary:3")
REPLAY, LEVIATHAN, BLOG = "replay and measured costs", "Leviathan et al.", "source blog's table"
CELL, CHECKING = ["batch", "prefix", "shape"], ["verify_ms", "commit_ms"]
NEARLY_FREE = 1.1  # times a plain round
NEW_TOKENS = 3  # of a timed call of a larger pair, whose rounds are long and alike


# ------------------------------------------------------------------------------------------- who competes, at what cost


def of_target(pairs: Sequence, heads: Sequence[str]) -> dict[str, object]:
    """By name the draft models of pairs that share a target, and drafters of these kinds of its shipped heads (or
    n-grams), as `recording.record` takes them.
    """
    models = {pair.drafter_name: pair.draft_model for pair in pairs}
    return models | {kind: make(kind, pairs[0]) for kind in heads}


def folders(pairs: Sequence, heads: Sequence[str]) -> list[str]:
    """The local folders of all models and heads, on whose content results depend."""
    own = {folder for pair in pairs for folder in pair.folders}
    return sorted(own | {str(check_shipped(pair.target_name, kind)) for pair in pairs for kind in heads})


def calibrate(pairs: Sequence, heads: Sequence[str], prompts: Sequence[torch.Tensor], **settings) -> pd.DataFrame:
    """`cost.calibrate` of every pair, and of the heads of each target; settings: as that takes them.

    A drafter that leaves out nodes of a shape has smaller trees verified than the shape's name says: the seconds of
    verifying then come from the pair's own model.
    """
    parts = [cost.calibrate(pair, prompts, **settings) for pair in pairs]
    for group in by_target(pairs).values():
        for kind in heads:
            drafter = make(kind, group[0])
            rows = cost.calibrate(group[0], prompts, drafter=drafter, **settings).assign(drafter=kind)
            if drafter.leaves_out:
                own = parts[pairs.index(group[0])].set_index(CELL)[CHECKING]
                rows[CHECKING] = own.loc[list(rows[CELL].itertuples(index=False))].values
            parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def calibrate_larger(names: Sequence[str], prompts: Sequence[torch.Tensor], *, dtype: str, device: str,
                     **settings) -> dict[str, pd.DataFrame]:
    """By pair the rows of `cost.calibrate`; settings: as that takes them. One pair is in memory at a time.

    Weights may be random (`models.sizes`), since costs do not depend on them. Empty where the processor has no units
    for the number format, in which a round would take minutes.
    """
    if any(processor.slow_dtype(each, device) for each in dtypes_of(dtype)):
        return {}
    settings = {"new_tokens": NEW_TOKENS, **settings}
    return {name: cost.calibrate(load_pair(name, dtype=dtype, device=device), prompts, **settings) for name in names}


# --------------------------------------------------------------------------------------------------------------- tables


def over_budget(recorded: Trace, costs: Costs, drafter: str, *, batches: Sequence[int], prefix: float,
                budgets: Sequence[int], limits: Limits, generator: np.random.Generator) -> pd.DataFrame:
    """The table "advice_budgets": the columns of `cost.speeds` for chain, k-ary trees and the fastest tree of each
    budget, at every batch. All trees keep to the limit on depth; a longer chain is left out.
    """
    choosing, judged = recording.halves(recorded)
    parts = []
    for batch in batches:
        own = costs.at(recorded.about["target"], drafter, batch=batch, prefix=prefix)
        fastest = best_tree.choose_each(choosing, own.round, limits, drafter)
        forest = [(OURS, n, fastest[n].tree) for n in budgets if n in fastest]
        forest += [(family, n, shapes.at_budget(family, n)) for family in RIVALS for n in budgets if n <= limits.nodes]
        forest = [one for one in forest if one[2].max_depth <= limits.depth]
        parts.append(cost.speeds(judged, drafter, forest, own, generator, batch=batch).assign(batch=batch))
    return pd.concat(parts, ignore_index=True).assign(target=recorded.about["target"], drafter=drafter, prefix=prefix)


def over_budget_with_costs_of(recorded: Trace, drafter: str, costs: Mapping[str, pd.DataFrame], *,
                              batches: Sequence[int], prefix: float, budgets: Sequence[int], limits: Limits,
                              generator: np.random.Generator) -> pd.DataFrame:
    """The table "advice_sizes": `over_budget` of a traced pair with the costs of each named pair, such as a larger one.

    Beside it, of those costs: plain_ms (a plain round), check (of as many nodes as the tree has) and level (of one
    node), both over a plain round, and free (the most nodes whose check takes up to 1.1 plain rounds). The acceptance
    of the larger pair itself is not known.
    """
    target, parts = recorded.about["target"], []
    for name, rows in costs.items():
        own = Costs(rows.assign(target=target, drafter=drafter))
        curve = over_budget(recorded, own, drafter, batches=batches, prefix=prefix, budgets=budgets, limits=limits,
                            generator=generator)
        price = {batch: own.at(target, drafter, batch=batch, prefix=prefix) for batch in batches}
        each = [price[batch] for batch in curve["batch"]]
        parts.append(curve.assign(
            costs=name, plain_ms=[1000 * one.plain for one in each], level=[one.level(1) / one.plain for one in each],
            check=[one.check(nodes) / one.plain for one, nodes in zip(each, curve["nodes"])],
            free=[_free(one, limits.nodes) for one in each]))
    return pd.concat(parts, ignore_index=True)


def _free(price: RoundCost, most: int) -> int:
    nodes = np.arange(1, most + 1)
    return int((price.check(nodes) <= NEARLY_FREE * price.plain).cumprod().sum())


def beside_formulas(recorded: Trace, costs: Costs, drafter: str, *, batches: Sequence[int], prefix: float,
                    lengths: Sequence[int], generator: np.random.Generator) -> pd.DataFrame:
    """The table "advice_formulas": speedups of chains by replay and costs, by Leviathan's formula and by the source
    blog's table.

    alpha: mean over the judging half; cost: a drafter's step over a target's step, measured. The blog's table depends
    on neither batch nor drafter.
    """
    _, judged = recording.halves(recorded)
    rows = []
    for batch in batches:
        own = costs.at(recorded.about["target"], drafter, batch=batch, prefix=prefix)
        alpha, step = formulas.mean_alpha(judged, drafter), own.level(1) / own.plain
        forest = [("chain", length, shapes.chain(length)) for length in lengths]
        replayed = cost.speeds(judged, drafter, forest, own, generator, batch=batch)["speedup"]
        for length, speedup in zip(lengths, replayed):
            by_source = {REPLAY: speedup, LEVIATHAN: formulas.leviathan_speedup(alpha, length, step),
                         BLOG: formulas.blog_speedup(length)}
            rows += [dict(batch=batch, length=length, by=source, speedup=value, alpha=alpha, cost=step)
                     for source, value in by_source.items()]
    return pd.DataFrame(rows).assign(target=recorded.about["target"], drafter=drafter)
