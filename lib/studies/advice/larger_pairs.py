"""What the advice would be for a larger pair: the acceptance of a pair that was traced, with the costs of another.

The other's weights may be random (`models.sizes`), since its costs do not depend on them. What is not known is what
the larger pair would accept.
"""

from typing import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib import cost, models
from lib.cost.best_tree import Limits
from lib.cost.fit import Costs
from lib.replay.trace import Trace
from lib.studies.advice import curves

NEARLY_FREE = 1.1  # times a plain step
NEW_TOKENS = 3  # of a timed call; rounds of large models are long, and alike


def calibrate(names: Sequence[str], prompts: Sequence[torch.Tensor], *, dtype: str, device: str,
              **settings) -> dict[str, pd.DataFrame]:
    """By pair the rows of `cost.calibrate`; settings: as that takes them. Each pair is loaded alone and then left."""
    settings = {"new_tokens": NEW_TOKENS, **settings}
    return {name: cost.calibrate(models.load_pair(name, dtype=dtype, device=device), prompts, **settings)
            for name in names}


def over_budget(recorded: Trace, drafter: str, costs: Mapping[str, pd.DataFrame], *, batches: Sequence[int],
                prefix: float, budgets: Sequence[int], limits: Limits, generator: np.random.Generator) -> pd.DataFrame:
    """The table "advice_sizes": `advice_curves.over_budget` of the traced pair with the costs of each name, and of
    those costs plain_ms (a plain round), check (of as many nodes as the tree has) and level (of one node), both over a
    plain round, and free (the most nodes whose check takes up to 1.1 plain rounds).
    """
    target, parts = recorded.about["target"], []
    for name, rows in costs.items():
        own = Costs(rows.assign(target=target, drafter=drafter))
        found = curves.over_budget(recorded, own, drafter, batches=batches, prefix=prefix, budgets=budgets,
                                          limits=limits, generator=generator)
        price = {batch: own.at(target, drafter, batch=batch, prefix=prefix) for batch in batches}
        each = [price[batch] for batch in found["batch"]]
        parts.append(found.assign(
            costs=name, plain_ms=[1000 * one.plain for one in each], level=[one.level(1) / one.plain for one in each],
            check=[one.check(nodes) / one.plain for one, nodes in zip(each, found["nodes"])],
            free=[_free(one, limits.nodes) for one in each]))
    return pd.concat(parts, ignore_index=True)


def _free(price: cost.RoundCost, most: int) -> int:
    nodes = np.arange(1, most + 1)
    return int((price.check(nodes) <= NEARLY_FREE * price.plain).cumprod().sum())


def worth(rows: pd.DataFrame) -> str:
    """By batch and costs: what the fastest tree is worth, as a sentence without its end."""
    parts = []
    for batch, own in _fastest(rows).groupby("batch", sort=False):
        each = ", ".join(f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}] with those of `{row.costs}`"
                         for row in own.itertuples())
        parts.append(f"at batch {batch} {each}")
    return "; ".join(parts)


def terms(rows: pd.DataFrame) -> pd.DataFrame:
    """By costs and batch, where speed is won: a plain round, a drafter's level and a check beside it, and the fastest
    tree."""
    found = _fastest(rows).set_index(["costs", "batch"])
    chains = rows[rows["family"] == "chain"].groupby(["costs", "batch"])["speedup"].max()
    return pd.DataFrame({
        "plain round (ms)": found["plain_ms"].round(2), "a level / plain": found["level"].round(2),
        "nodes for a tenth more": found["free"], "fastest tree's nodes": found["nodes"],
        "its check / plain": found["check"].round(2), "its speedup": found["speedup"].round(2),
        "best chain's": chains.reindex(found.index).round(2)})


def _fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest tree's row of each costs and batch, in the order of the table."""
    trees = rows[rows["family"] == curves.OURS]
    return trees.loc[trees.groupby(["costs", "batch"], sort=False)["speedup"].idxmax()]
