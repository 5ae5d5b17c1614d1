"""Choosing a drafter for every request: bandits and their baselines on speeds that were measured, in random orders."""

from typing import Sequence

import numpy as np
import pandas as pd
import torch

from lib.studies.drafters import bandit
from lib.studies.drafters.measure import CONTROLS, PLAIN


def speeds(rows: pd.DataFrame, shape: str) -> pd.DataFrame:
    """Tokens a second of each prompt (row) with each drafter (column) at one shape, plain decoding among them.

    From rows of one target, with `ms`.
    """
    own = rows[rows["shape"].eq(shape) & ~rows["drafter"].isin(CONTROLS) | rows["drafter"].eq(PLAIN)]
    sums = own.groupby(["prompt", "drafter"], sort=False)[["tokens", "ms"]].sum()
    return (1000 * sums["tokens"] / sums["ms"]).unstack("drafter").dropna(axis=0)


def simulate(table: pd.DataFrame, prompt_tokens: pd.Series, *, short: str, long: str, requests: int, orders: int,
             seed: int) -> pd.DataFrame:
    """Every way of choosing over so many random orders of requests: chooser, order, gain (sum over requests of the
    speed over plain decoding's), requests, and best (requests that got the drafter that is fastest for them).

    table: see `speeds`; prompt_tokens: by prompt. short, long: the drafters of the choice by prompt length.
    """
    rng, names, made = np.random.default_rng(seed), list(table), []
    lengths = prompt_tokens[table.index].to_numpy()
    fastest, middle = table.idxmax(axis=1).to_numpy(), float(np.median(lengths))
    once = (table.div(table[PLAIN], axis=0)).mean().idxmax()
    for order in range(orders):
        drawn = rng.integers(len(table), size=requests)
        measure = _measured(table, drawn)
        choosers = {
            "upper confidence bound": bandit.upper_bound(),
            "Thompson sampling": bandit.thompson(torch.Generator().manual_seed(seed * orders + order)),
            "by prompt length": bandit.by_length(short, long, middle),
            f"always {once}": bandit.by_length(once, once, middle),
        }
        chosen = {name: bandit.serve(lengths[drawn], names, how, measure)[0] for name, how in choosers.items()}
        chosen["in hindsight"] = list(fastest[drawn])
        made += [_row(name, order, table, drawn, picked, fastest) for name, picked in chosen.items()]
    return pd.DataFrame(made)


def _measured(table: pd.DataFrame, drawn: np.ndarray):
    return lambda index, name: float(table[name].iloc[drawn[index]])


def _row(name: str, order: int, table: pd.DataFrame, drawn: np.ndarray, picked: Sequence[str], fastest) -> dict:
    relative = table.div(table[PLAIN], axis=0).to_numpy()
    columns = [table.columns.get_loc(drafter) for drafter in picked]
    return {"chooser": name, "order": order, "gain": float(relative[drawn, columns].sum()), "requests": len(drawn),
            "best": int(sum(drafter == fastest[row] for drafter, row in zip(picked, drawn)))}
