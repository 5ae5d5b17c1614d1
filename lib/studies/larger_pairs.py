"""What the advice would be for a larger pair: the acceptance of a pair that was traced, with the costs of another.

The other's weights may be random (`models.sizes`), since its costs do not depend on them. What is not known is what
the larger pair would accept.
"""

from typing import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib import cost, models
from lib.cost import Costs
from lib.search.best_tree import Limits
from lib.studies import advice_curves
from lib.trace import Trace

NEARLY_FREE = 1.1  # times a plain step


def calibrate(names: Sequence[str], prompts: Sequence[torch.Tensor], *, dtype: str, device: str,
              **settings) -> dict[str, pd.DataFrame]:
    """By pair the rows of `cost.calibrate`; settings: as that takes them. Each pair is loaded alone and then left."""
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
        found = advice_curves.over_budget(recorded, own, drafter, batches=batches, prefix=prefix, budgets=budgets,
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


def said(rows: pd.DataFrame) -> str:
    """By costs and batch: what a plain round takes, how many nodes are checked nearly for free, and the fastest tree
    beside the best chain.
    """
    parts = []
    for (name, batch), own in rows.groupby(["costs", "batch"], sort=False):
        best, chain = ((each := own[own["family"] == family]).loc[each["speedup"].idxmax()]
                       for family in (advice_curves.OURS, "chain"))
        parts.append(f"`{name}` at batch {batch}: a plain round takes {best['plain_ms']:.3g} ms, up to {best['free']} "
                     f"drafted nodes are checked for a tenth more, and {best['nodes']} are fastest, "
                     f"{best['speedup']:.2f} times plain decoding [{best['speedup_low']:.2f}, "
                     f"{best['speedup_high']:.2f}], a chain {chain['speedup']:.2f}")
    return "; ".join(parts)
