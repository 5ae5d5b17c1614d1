"""The tables of the advice beside the recommendation itself, which `lib.cost.recommending` makes: what its candidates
would be worth with the costs of larger pairs, and what formulas say of chains.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib import cost
from lib.cost import formulas, roofline
from lib.cost.candidates import Candidate, powers_of_two
from lib.cost.recommendation import PLAIN
from lib.cost.recommending import Found, row
from lib.cost.round_cost import Costs, RoundCost
from lib.drafters.registry import parse
from lib.lab import processor, stats
from lib.models.checks import dtypes_of
from lib.models.load import load_pair
from lib.studies.advice.machines import Machine

REPLAY, LEVIATHAN, BLOG = "replay and measured costs", "Leviathan et al.", "source blog's table"
NEARLY_FREE = 1.1  # times a plain round
HERE = "this machine"
MOST_MAPPED = 64  # nodes of a tree that is compared with a chain


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

    costs: rows of one pair each. Only candidates take part that draft with the pair's draft model,
    which take the cost of the named pair's, or without a model. The acceptance of the larger pair is not known.
    """
    rows, tried = [], [each for each in tried if not each.passes or parse(each.entrant.spec)[0] == "model"]
    for name, own in costs.items():
        known, (owner, drafter, dtype) = Costs(own), own[["target", "drafter", "dtype"]].iloc[0]
        for batch in batches:
            price = known.at(owner, drafter, batch=batch)
            for each in tried:
                more = dict(costs=name, dtype=dtype, plain_ms=1000 * price.plain,
                            check=price.check(each.shape.budget) / price.plain, free=_free(price, 64))
                rows.append(row(each, batch, price, rng) | more)
    found = pd.DataFrame(rows).assign(target=target)
    best = found.groupby(["costs", "batch", "budget", "chain"], sort=False)["speedup"].idxmax()
    return found.loc[best].reset_index(drop=True)


def tree_or_chain(found: Found, elsewhere: Sequence[Machine], rng: np.random.Generator,
                  most: int = MOST_MAPPED) -> pd.DataFrame:
    """The table "advice_map": for each drafter and budget, a power of two, the fastest tree of more than half as many
    nodes that is no chain, over the drafter's fastest chain of any length; at the costs that were measured here and
    elsewhere, and at those that `roofline` computes. Intervals are paired by prompt.
    """
    rows = []
    for batch, here in found.prices.items():
        prices = {(HERE, "measured"): here}
        prices |= {(machine.name, "measured"): machine.prices(batch, here) for machine in elsewhere}
        prices |= {(name, "computed"): {drafter: roofline.on(hardware, own, most, batch)
                                        for drafter, own in here.items()}
                   for name, hardware in roofline.HARDWARE.items()}
        for (hardware, source), price in prices.items():
            for name in dict.fromkeys(each.entrant.name for each in found.tried if each.entrant.name in price):
                own = [each for each in found.tried if each.entrant.name == name and each.shape.budget <= most]
                rows += [dict(hardware=hardware, source=source, batch=batch, drafter=name, **told)
                         for told in _over_chain(own, price[name], batch, rng)]
    columns = ["hardware", "source", "batch", "drafter", "budget", "shape", "chain_shape", "speedup", "over_chain",
               "over_chain_low", "over_chain_high"]
    target, dtype = found.recommendation.target, found.recommendation.dtype
    return pd.DataFrame(rows, columns=columns).assign(target=target, dtype=dtype)


def _over_chain(tried: Sequence[Candidate], price: RoundCost, batch: int, rng) -> Iterator[dict[str, object]]:
    """Of one drafter, by budget: its fastest tree over its fastest chain."""
    speed = {each.name: each.speedup(price, batch) for each in tried}
    chains = [each for each in tried if each.is_chain]
    if not chains:
        return
    chain = max(chains, key=lambda each: speed[each.name])
    for budget in powers_of_two(max(each.shape.budget for each in tried)):
        trees = [each for each in tried if budget / 2 < each.shape.budget <= budget and each.branches]
        if not trees:
            continue
        tree = max(trees, key=lambda each: speed[each.name])
        share = stats.difference(*_tokens(tree), *_tokens(chain), rng, relative=True)
        slower = tree.seconds(price, batch) / chain.seconds(price, batch)
        yield dict(budget=budget, shape=tree.label, chain_shape=chain.label, speedup=speed[tree.name],
                   over_chain=share.value / slower, over_chain_low=share.low / slower,
                   over_chain_high=share.high / slower)


def _tokens(each: Candidate) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and rounds by prompt, in the order of the prompts' names."""
    order = np.argsort(each.prompts)
    return (each.accepted + each.rounds)[order], each.rounds[order]


def _free(price: RoundCost, most: int) -> int:
    nodes = np.arange(1, most + 1)
    return int((price.check(nodes) <= NEARLY_FREE * price.plain).cumprod().sum())


def beside_formulas(candidates: pd.DataFrame, drafter: str) -> pd.DataFrame:
    """The table "advice_formulas": speedups of a drafter's chains by replay and costs, by Leviathan's formula and by
    the source blog's table; from the table "advice_candidates".

    alpha: the share of rounds that accept the first token; cost: a drafter's step over a target's step, measured. The
    blog's table depends on neither batch nor drafter.
    """
    rows = []
    named = candidates["shape"] == "chain:" + candidates["budget"].astype(str)
    chains = candidates[named & (candidates["drafter"] == drafter)]
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
