"""Where a tree beats a chain: each drafter's fastest tree over its fastest chain, by budget, at the costs of this
machine, of others, and of data sheets; and the orders of trees and chains that papers report.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.cost import roofline
from lib.cost.candidates import Candidate
from lib.cost.recommendation import ONE, PLAIN, Recommendation
from lib.cost.judging import measured
from lib.cost.recommending import Found
from lib.cost.round_cost import RoundCost
from lib.lab import stats
from lib.studies.advice.machines import HERE, Machine
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

MOST = 64  # nodes of a tree that is compared with a chain
ANY = 0  # in place of a budget: trees of every size


@dataclass(frozen=True)
class Order:
    """A published order: the fastest candidate of one kind over the fastest of another, of the same drafter."""

    claim: str
    source: str
    better: Callable[[Candidate], bool]
    worse: Callable[[Candidate], bool]
    drafter: str = ""  # the one that it is about; empty for all


ORDERS = (
    Order("PCTree over DSpark's chain", "PCTree 2026", lambda each: each.label.startswith("pctree"),
          lambda each: each.is_chain, "dspark"),
    Order("trees of more than 32 nodes over smaller ones", "JetSpec 2026",
          lambda each: each.branches and each.shape.budget > 32, lambda each: each.branches and each.shape.budget <= 32,
          "jetspec"),
    Order("grown trees over static trees", "Wang et al. 2025, OPT-Tree", lambda each: isinstance(each.shape, Growth),
          lambda each: each.branches and isinstance(each.shape, Tree)))


def orders(found: Found, elsewhere: Sequence[Machine], rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_orders": the speed of the fastest candidate of one kind over that of another kind, for the
    published orders of a drafter's trees and chains, at all costs; chosen and judged as in `over_chains`. Drafters
    that only another run has are as it found them.
    """
    rows = []
    for at, own, price, batch in _priced(found, elsewhere):
        seconds = {each.name: each.seconds(price, batch) for each in own}
        for order in ORDERS:
            better, worse = ([each for each in own if wanted(each)] for wanted in (order.better, order.worse))
            if better and worse and order.drafter in ("", at["drafter"]):
                share = stats.difference(*_judged(better, seconds), *_judged(worse, seconds), rng, relative=True)
                rows.append(at | dict(order=order.claim, published=order.source, shape=_fastest(better, seconds).label,
                                      beside=_fastest(worse, seconds).label, ratio=share.value, ratio_low=share.low,
                                      ratio_high=share.high))
    columns = ["hardware", "source", "batch", "drafter", "timed", "order", "published", "shape", "beside", "ratio",
               "ratio_low", "ratio_high"]
    return _with_theirs(pd.DataFrame(rows, columns=columns), "advice_orders", found, elsewhere)


def over_chains(found: Found, elsewhere: Sequence[Machine], rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_map": for each drafter and budget, a power of two, the fastest tree of more than half as many
    nodes that is no chain, over the drafter's fastest chain of any length; and with `ANY` in place of a budget the
    fastest of all trees. At the costs that were measured here and elsewhere, of drafters that were timed there, and at
    those that `roofline` computes.

    Tree and chain are chosen on every second prompt and judged on the others, both ways; intervals are paired by
    prompt. Drafters that only another run has are as it found them.
    """
    rows = [at | told for at, own, price, batch in _priced(found, elsewhere)
            for told in _over_chain(own, price, batch, rng)]
    columns = ["hardware", "source", "batch", "drafter", "timed", "budget", "shape", "chain_shape", "speedup",
               "chain_speedup", "over_chain", "over_chain_low", "over_chain_high"]
    return _with_theirs(pd.DataFrame(rows, columns=columns), "advice_map", found, elsewhere)


def _with_theirs(rows: pd.DataFrame, name: str, found: Found, elsewhere: Sequence[Machine]) -> pd.DataFrame:
    """This run's table `name`, and for each drafter that did not compete here the rows of the first other run that has
    it, on the hardware of this table.
    """
    own = rows.assign(target=found.recommendation.target, dtype=found.recommendation.dtype)
    parts, known = [own], {each.entrant.name for each in found.tried}
    for machine in elsewhere:
        if name in machine.run:
            theirs = machine.run[name].replace({"hardware": {HERE: machine.name}})
            theirs = only_timed(theirs[theirs["hardware"].isin(own["hardware"]) & ~theirs["drafter"].isin(known)])
            parts, known = [*parts, theirs], known | set(theirs["drafter"])
    return pd.concat(parts, ignore_index=True)


def only_timed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without those that are called measured, of drafters that were not timed on that hardware."""
    return rows[rows["timed"].astype(bool) | (rows["source"] != "measured")]


def ratios(found: Found, elsewhere: Sequence[Machine], rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_ratios": the speed of a tree over that of a chain, timed in turns on the same prompts, here and
    in the runs on other machines: of each drafter that had both in the race that chose, and of the recommendation.
    """
    runs = [(HERE, found.recommendation, {"advice_timed": found.timed})]
    runs += [(machine.name, machine.made, machine.run) for machine in elsewhere]
    rows = [dict(hardware=name, target=made.target, dtype=made.dtype) | told for name, made, run in runs
            for told in [*(_chosen(run["advice_timed"], rng) if "advice_timed" in run else ()), *_recommended(made)]]
    columns = ["hardware", "target", "dtype", "batch", "part", "tree", "chain", "ratio", "ratio_low", "ratio_high",
               "n_prompts"]
    return pd.DataFrame(rows, columns=columns)


def _chosen(timed: pd.DataFrame, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    """Of each drafter its fastest tree over its fastest chain; timed: the table "advice_timed"."""
    rows = timed[(timed["part"] == "choosing") & (timed["way"] != PLAIN)]
    named = rows["way"].str.extract(r"^(?P<drafter>.*), (?P<shape>[^ ]+)$")
    rows = rows.assign(drafter=named["drafter"], chain=named["shape"].str.startswith("chain:"))
    for (batch, _), own in rows.groupby(["batch", "drafter"], sort=False):
        speed = np.log(own["rate"]).groupby([own["chain"], own["way"]]).mean()
        if own["chain"].nunique() == 2:
            tree, chain = speed[False].idxmax(), speed[True].idxmax()
            both = own[own["way"].isin([tree, chain])]
            prompts = both.groupby("prompt")["way"].nunique().eq(2).sum()
            yield dict(batch=batch, part="choosing", tree=tree, chain=chain, n_prompts=int(prompts)) | _interval(
                measured(both, tree, chain, rng))


def _recommended(made: Recommendation) -> Iterator[dict[str, object]]:
    """The recommended tree over the fastest chain, on the prompts that judged, where it is no chain."""
    for own in made.by_batch:
        if not own.is_plain and own.over_chain != ONE:
            yield dict(batch=own.batch, part="judging", tree=f"{own.drafter}, {own.tree}", n_prompts=own.prompts,
                       chain=f"{own.chain['drafter']}, {own.chain['tree']}") | _interval(own.over_chain)


def _interval(own) -> dict[str, float]:
    return {"ratio": own.value, "ratio_low": own.low, "ratio_high": own.high}


def _priced(found: Found, elsewhere: Sequence[Machine]) -> Iterator[tuple[dict, list[Candidate], RoundCost, int]]:
    """The candidates of each drafter with the cost of its rounds, on each hardware at each batch: (the columns that
    name these, candidates, cost, batch). Where costs are measured, without drafters that were not timed there, and
    without trees that they were not timed to grow.
    """
    for batch, here in found.prices.items():
        prices = {(HERE, "measured"): (here, set(here), set(here))}
        prices |= {(machine.name, "measured"): (machine.prices(batch, here), machine.timed(batch), machine.grew(batch))
                   for machine in elsewhere}
        prices |= {(name, "computed"): ({drafter: roofline.on(hardware, own, MOST, batch)
                                         for drafter, own in here.items()}, set(), set(here))
                   for name, hardware in roofline.HARDWARE.items()}
        for (hardware, source), (price, timed, grew) in prices.items():
            for name in dict.fromkeys(each.entrant.name for each in found.tried if each.entrant.name in price):
                own = [each for each in found.tried if each.entrant.name == name and each.shape.budget <= MOST
                       and (name in grew or not each.passes or isinstance(each.shape, Tree))]
                known = name in timed or not any(each.passes for each in own)
                if known or source != "measured":
                    named = dict(hardware=hardware, source=source, batch=batch, drafter=name, timed=known)
                    yield named, own, price[name], batch


def _over_chain(tried: Sequence[Candidate], price: RoundCost, batch: int, rng) -> Iterator[dict[str, object]]:
    """Of one drafter, by budget: its fastest tree over its fastest chain."""
    chains, trees = [each for each in tried if each.is_chain], [each for each in tried if each.branches]
    if not chains or not trees:
        return
    seconds = {each.name: each.seconds(price, batch) for each in tried}
    chain, base = _fastest(chains, seconds), _judged(chains, seconds)
    budgets = {budget: [each for each in trees if budget / 2 < each.shape.budget <= budget]
               for budget in _powers_of_two(max(each.shape.budget for each in trees))}
    for budget, own in {ANY: trees, **budgets}.items():
        if own:
            tree, share = _fastest(own, seconds), stats.difference(*_judged(own, seconds), *base, rng, relative=True)
            yield dict(budget=budget, shape=tree.label, chain_shape=chain.label, speedup=tree.speedup(price, batch),
                       chain_speedup=chain.speedup(price, batch), over_chain=share.value, over_chain_low=share.low,
                       over_chain_high=share.high)


def _powers_of_two(most: int) -> list[int]:
    """Budgets 1, 2, 4, .. and `most`."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _fastest(some: Sequence[Candidate], seconds: Mapping[str, float], part: slice = slice(None)) -> Candidate:
    """The candidate of the most tokens per second on a part of the prompts."""
    def speed(each: Candidate) -> float:
        tokens, rounds = _tokens(each)
        return tokens[part].sum() / max(1, rounds[part].sum()) / seconds[each.name]
    return max(some, key=speed)


def _judged(some: Sequence[Candidate], seconds: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds by prompt of the candidate that is fastest on every second prompt, the others' on these."""
    tokens, taken = (np.zeros(len(some[0].prompts)) for _ in range(2))
    for chosen_on, judged in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        best = _fastest(some, seconds, chosen_on)
        own, rounds = _tokens(best)
        tokens[judged], taken[judged] = own[judged], rounds[judged] * seconds[best.name]
    return tokens, taken


def _tokens(each: Candidate) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and rounds by prompt, in the order of the prompts' names."""
    order = np.argsort(each.prompts)
    return (each.accepted + each.rounds)[order], each.rounds[order]
