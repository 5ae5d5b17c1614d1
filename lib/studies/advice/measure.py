"""The tables of the advice beside the recommendation itself, which `lib.cost.recommending` makes: what its candidates
would be worth with the costs of larger pairs, and what formulas say of chains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from scipy.stats import quantile_test

from lib import cost
from lib.cost import formulas
from lib.cost.candidates import Candidate
from lib.cost.recommendation import PLAIN
from lib.cost.recommending import RULER, row
from lib.cost.round_cost import CostTable, RoundCost
from lib.drafters.registry import parse
from lib.lab import processor, stats
from lib.models.checks import dtypes_of
from lib.models.load import load_pair

REPLAY, LEVIATHAN, BLOG = "replay and measured costs", formulas.LEVIATHAN, "source blog's table"
NEARLY_FREE = 1.1  # times a plain round


def calibrate_larger(names: Sequence[str], prompts: Sequence[torch.Tensor], *, dtype: str, device: str,
                     **settings) -> dict[str, pd.DataFrame]:
    """By pair the rows of `cost.calibrate`; settings: as that takes them. One pair is in memory at a time.

    Weights may be random (`models.sizes`), since costs do not depend on them. Empty where the processor has no units
    for the number format, in which a round would take minutes.
    """
    if any(processor.slow_dtype(each, device) for each in dtypes_of(dtype, device)):
        return {}
    return {name: cost.calibrate(load_pair(name, dtype=dtype, device=device), prompts, **settings) for name in names}


def with_costs_of(tried: Sequence[Candidate], target: str, costs: Mapping[str, pd.DataFrame], batches: Sequence[int],
                  rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_sizes": the candidates of a traced target with the costs of each named pair, such as a larger
    one; the fastest of each budget, and the chain.

    costs: rows of one pair each, first of the target's own; checks are those of RULER, which hold both sides of each
    step, where there are rows of it. Only candidates take part that draft with the pair's draft model, which take the
    cost of the named pair's, or without a model; without any the table is empty. The acceptance of the larger pair is
    not known.
    """
    rows, of_pair = [], {}  # of_pair: the cost of rounds of the first pair, the target's own, by batch
    tried = [each for each in tried if not each.passes or parse(each.entrant.spec)[0] == "model"]
    for name, own in costs.items() if tried else ():
        known, (owner, drafter, dtype) = CostTable(own), own[["target", "drafter", "dtype"]].iloc[-1]
        for batch in batches:
            price = known.at(owner, drafter, batch=batch)
            check = known.cells.get((owner, RULER, batch), price)
            price = replace(price, plain=check.plain, check=check.check)
            price = price.growing_as(of_pair.setdefault(batch, price))
            for each in tried:
                more = dict(costs=name, dtype=dtype, plain_ms=1000 * price.plain,
                            check=price.check(each.shape.budget) / price.plain, free=_free(price, 64))
                rows.append(row(each, batch, price, rng) | more)
    if not rows:
        return pd.DataFrame()
    found = pd.DataFrame(rows).assign(target=target)
    best = found.groupby(["costs", "batch", "budget", "chain"], sort=False)["speedup"].idxmax()
    return found.loc[best].reset_index(drop=True)


def _free(price: RoundCost, most: int) -> int:
    nodes = np.arange(1, most + 1)
    return int((price.check(nodes) <= NEARLY_FREE * price.plain).cumprod().sum())


def beside_formulas(candidates: pd.DataFrame, drafters: Sequence[str]) -> pd.DataFrame:
    """The table "advice_formulas": speedups of the chains of the first of these drafters that has one of a single
    token, by replay and costs, by Leviathan's formula and by the source blog's table; from the table
    "advice_candidates". Empty where no drafter has.

    alpha: the share of rounds that accept the first token; cost: a drafter's step over a target's step, measured. The
    blog's table depends on neither batch nor drafter.
    """
    rows = []
    named = candidates[candidates["shape"] == "chain:" + candidates["budget"].astype(str)]
    single = set(named.loc[named["budget"] == 1, "drafter"])
    chains = named[named["drafter"] == next((name for name in drafters if name in single), None)]
    alpha = chains[chains["budget"] == 1].set_index("batch")["tokens"] - 1
    for chain in chains.to_dict("records"):
        own, length = alpha[chain["batch"]], chain["budget"]
        by_source = {REPLAY: chain["speedup"], BLOG: formulas.blog_speedup(length),
                     LEVIATHAN: formulas.leviathan_speedup(own, length, chain["level"])}
        rows += [{name: chain[name] for name in ("target", "dtype", "drafter", "batch")} | dict(
            length=length, by=source, speedup=value, alpha=own, cost=chain["level"])
            for source, value in by_source.items()]
    return pd.DataFrame(rows)


def beside(candidates: pd.DataFrame, timed: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured time of a round, in plain rounds, of the candidates that were timed on the choosing
    prompts: batch, way, predicted, measured (median over turns), ratio. From the tables "advice_candidates" and
    "advice_timed".
    """
    rows = timed[timed["part"] == "choosing"]
    rounds = rows.pivot_table(index=["batch", "prompt", "repeat"], columns="way", values="round_ms")
    measured = rounds.div(rounds[PLAIN], axis=0).groupby("batch").median().drop(columns=PLAIN)
    measured = measured.rename_axis(columns="way").stack().dropna().rename("measured").reset_index()
    named = candidates.assign(way=candidates["drafter"] + ", " + candidates["shape"],
                              predicted=candidates["tokens"] / candidates["speedup"])
    both = measured.merge(named[["batch", "way", "predicted"]], on=["batch", "way"])
    return both.assign(ratio=both["measured"] / both["predicted"])


def medians(errors: pd.DataFrame) -> dict[str, float]:
    """Of the table "advice_errors": n, the number of its cases; the medians of the error's size, of the error (value,
    low, high) and of its parts; the interval by order statistics, NaN for too few cases.
    """
    ends = quantile_test(errors["error"], p=0.5).confidence_interval(stats.LEVEL)
    return dict(n=len(errors), size=errors["error"].abs().median(), value=errors["error"].median(), low=ends.low,
                high=ends.high, tokens=errors["tokens_error"].median(), time=errors["time_error"].median(),
                optimism=errors["optimism"].median() - 1)
