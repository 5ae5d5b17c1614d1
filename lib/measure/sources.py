"""The tables of two weblogs on their own grid, beside what this run measured: by draft length, by pair of models, by
task and by scenario. Acceptance is that of notebook 02, by replay of greedy text before a loop; speeds follow from it
and from the costs that notebook 06 timed at batch 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lib.cost import recommendation
from lib.cost.recommendation import Recommendation
from lib.cost.round_cost import FREE, RULER, CostTable, RoundCost
from lib.lab import stats, tables
from lib.lab.chapter import Store
from lib.trees import named

LENGTH, PAIR, TASK, SCENARIO = "draft length", "pair", "task", "scenario"
FROM_TRACE = ("sparse", "optimal", "frequent")  # families of trees that are made of recorded text
OF_PAIRS = 5  # draft tokens of the chains with which pairs are compared
# The weblogs' tables. By draft length: chain length, acceptance, speedup, share of target calls saved.
CLAIMS = {"length": [3, 5, 8, 12], "acceptance": [0.85, 0.78, 0.70, 0.62], "speedup": [1.8, 2.1, 2.3, 2.1],
          "saved": [0.45, 0.58, 0.67, 0.72]}
# kind of text (its "creative writing" is a story here) -> speedup with EAGLE, speedup with n-gram look-up
BY_TASK = {"code": ("2-3", "1.5-2"), "translation": ("2", "1.2"), "summary": ("1.8", "1.1"), "story": ("1.5", "1.0")}
CALLED = {"coding": "code", "summarization": "summary", "writing": "story"}  # the same kinds among chat prompts
# parameters of target and drafter -> (acceptance rate, speedup, memory beyond the target's)
BY_PAIR = {"7B/160M": (0.78, 2.1, 0.12), "70B/1B": (0.65, 1.5, 0.18)}
# What a weblog recommends, and the kinds of text here that are closest to it.
SCENARIOS = {"code completion": ("EAGLE, 5 to 8", ("coding", "code")),
             "chat": ("EAGLE, 3 to 5", ("writing", "roleplay", "humanities", "dialogue")),
             "documents": ("n-grams, 4 to 6", ("summarization", "rag", "extraction", "summary")),
             "translation in real time": ("not recommended", ("translation",))}
EMPTY = dict(grid="", row="", target="", drafter="", shape="", dtype="", machine="", n_prompts=0, claimed="")
EMPTY |= dict.fromkeys(["rate", "rate_low", "rate_high", "tokens", "saved", "speedup", "speedup_low", "speedup_high",
                        "memory", "claimed_rate", "claimed_saved", "claimed_memory"], float("nan"))


def measure(store: Store, seed: int) -> None:
    """Writes the table "source_grid" from a run's tables of notebooks 02 and 06 and its recommendation; where notebook
    02 is no part of the run, with what the weblogs say alone.
    """
    advised = recommendation.load(store.folder / recommendation.FILE)
    rows, sizes = pd.DataFrame(), {}
    if all(tables.exists(store.folder, name) for name in ("acceptance", "models")):
        chains = tables.read(store.folder, "chains") if tables.exists(store.folder, "chains") else pd.DataFrame()
        rows = greedy_rounds(tables.read(store.folder, "acceptance"), chains)
        sizes = tables.read(store.folder, "models").set_index("model")["parameters"].to_dict()
    costs, candidates = (tables.read(store.folder, name) for name in ("costs", "advice_candidates"))
    prices = prices_of(CostTable(costs), candidates, advised)
    measured = Measured(rows, prices, advised.target, advised.dtype, advised.processor, sizes)
    store.write("source_grid", measured.grid(np.random.default_rng(seed)))


def greedy_rounds(acceptance: pd.DataFrame, chains: pd.DataFrame) -> pd.DataFrame:
    """Greedy rounds before a loop from the tables "acceptance" and "chains", by target, drafter and shape."""
    rows = pd.concat([acceptance, chains.assign(family="chain", depth=chains["budget"])] if len(chains)
                     else [acceptance], ignore_index=True)
    rows = rows[(rows["stretch"] == "before") & (rows["temperature"] == 0)]
    return rows.drop_duplicates(["target", "drafter", "family", "budget", "prompt"])


def prices_of(costs: CostTable, candidates: pd.DataFrame, advised: Recommendation) -> dict[str, RoundCost]:
    """The cost of rounds at batch 1 by drafter, as candidates had it, a draft model's under its name; of drafters that
    were timed, or whose drafting takes no time. Empty without that batch size. candidates: "advice_candidates".
    """
    if (advised.target, RULER, 1) not in costs.cells:
        return {}
    check = costs.at(advised.target, RULER)
    prices = {drafter: price.checking_as(check)
              for (target, drafter, batch), price in costs.cells.items() if (target, batch) == (advised.target, 1)}
    costless = candidates.loc[candidates["level"] == 0, "drafter"]
    prices |= {drafter: replace(check, once=0.0, level=FREE) for drafter in costless}
    named = {model: f"model ({model})" if len(advised.draft_models) > 1 else "model" for model in advised.draft_models}
    return prices | {model: prices[name] for model, name in named.items() if name in prices}


@dataclass(frozen=True)
class Measured:
    """What the table is made of.

    rows: of `greedy_rounds`, or none. prices: the cost of rounds at batch 1 by drafter; a drafter without one has no
    speed. target, dtype, machine: of these costs. sizes: numbers of each model.
    """

    rows: pd.DataFrame
    prices: Mapping[str, RoundCost]
    target: str
    dtype: str
    machine: str
    sizes: Mapping[str, int]

    def grid(self, rng: np.random.Generator) -> pd.DataFrame:
        """The table "source_grid"."""
        parts = [claims()]
        if len(self.rows):
            parts += [self.by_length(rng), self.by_pair(rng), self.by_task(rng), self.by_scenario(rng)]
        return pd.DataFrame([EMPTY | row for part in parts for row in part])[list(EMPTY)]

    @property
    def of_target(self) -> pd.DataFrame:
        """The rows of the target that was timed."""
        return self.rows[self.rows["target"] == self.target]

    def by_length(self, rng: np.random.Generator) -> Iterator[dict]:
        """Chains of the lengths of the weblog's table, for each drafter of the target."""
        about, rows = {row["row"]: row for row in claims() if row["grid"] == LENGTH}, self.of_target
        chains = rows[("chain:" + rows["budget"].astype(str)).isin(about) & (rows["family"] == "chain")]
        for row in self.estimates(chains, [], rng):
            yield row | about[row["shape"]]

    def by_pair(self, rng: np.random.Generator) -> Iterator[dict]:
        """Each pair of a target and a draft model, with chains of OF_PAIRS tokens."""
        chains = self.rows[(self.rows["family"] == "chain") & (self.rows["budget"] == OF_PAIRS)]
        for row in self.estimates(chains[chains["drafter"].isin(list(self.sizes))], [], rng):
            yield row | dict(grid=PAIR, row=f"{row['target']}/{row['drafter']}",
                             memory=self.sizes[row["drafter"]] / self.sizes[row["target"]])

    def by_task(self, rng: np.random.Generator) -> Iterator[dict]:
        """Each kind of text with each drafter at its best shape, of most tokens per round where it was not timed."""
        for row in self.judged(self.of_target, "kind", "drafter", rng):
            kind = row.pop("kind")
            claim = BY_TASK.get(CALLED.get(kind, kind))
            yield row | dict(grid=TASK, row=kind, claimed=f"EAGLE {claim[0]}, n-grams {claim[1]}" if claim else "")

    def by_scenario(self, rng: np.random.Generator) -> Iterator[dict]:
        """For the kinds of text of each scenario the fastest drafter and length of a chain, beside what the weblog
        recommends; of drafters that were timed.
        """
        scenarios = {kind: name for name, (_, kinds) in SCENARIOS.items() for kind in kinds}
        rows = self.of_target.assign(scenario=self.of_target["kind"].map(scenarios)).dropna(subset="scenario")
        rows = rows[(rows["family"] == "chain") & rows["drafter"].isin(list(self.prices))]
        for row in self.judged(rows, "scenario", "scenario", rng):
            name = row.pop("scenario")
            yield row | dict(grid=SCENARIO, row=name, claimed=SCENARIOS[name][0])

    def judged(self, rows: pd.DataFrame, by: str, per: str, rng: np.random.Generator) -> list[dict]:
        """Estimates by a column, of the drafter and shape that are fastest for each value of the column `per` on every
        other prompt; on the other prompts.
        """
        order = rows[["kind", "prompt"]].drop_duplicates().sort_values(["kind", "prompt"])["prompt"]
        chooses = rows["prompt"].isin(order.iloc[::2])
        tried = pd.DataFrame(self.estimates(rows[chooses], [per], rng))
        if tried.empty:
            return []
        timed = tried.groupby(per)["speedup"].transform("count") > 0
        speed = tried["speedup"].where(timed, tried["tokens"]).dropna()
        best = tried.loc[speed.groupby(tried[per]).idxmax(), list(dict.fromkeys([per, "drafter", "shape"]))]
        return self.estimates(rows[~chooses].assign(shape=_shape).merge(best), [by], rng)

    def estimates(self, rows: pd.DataFrame, by: list[str], rng: np.random.Generator) -> list[dict]:
        """By these columns and target, drafter, family and budget: the acceptance rate with its interval, tokens per
        round, the share of target calls saved, and the speedup where drafting was timed.
        """
        keys = list(dict.fromkeys([*by, "target", "drafter", "family", "budget"]))
        length = stats.summarise(rows, keys, "accepted", "rounds", rng).set_index(keys)
        rate = stats.summarise(rows, keys, "accepted", "drafted", rng).set_index(keys)
        sums = rows.groupby(keys, sort=False)[["drafted", "rounds"]].sum()
        grid = pd.DataFrame({"rate": rate["value"], "rate_low": rate["low"], "rate_high": rate["high"],
                             "tokens": 1 + length["value"], "saved": 1 - 1 / (1 + length["value"]),
                             "n_prompts": length["n_prompts"], "drafted": sums["drafted"] / sums["rounds"]})
        grid = grid.reset_index()
        cost = np.array([self.cost(row) for row in grid.itertuples()])
        ends = length[["value", "low", "high"]].to_numpy()
        grid[["speedup", "speedup_low", "speedup_high"]] = (1 + ends) / cost[:, None]
        grid = grid.assign(shape=_shape, machine=np.where(np.isfinite(cost), self.machine, ""), dtype=self.dtype)
        return grid.drop(columns=["family", "budget", "drafted"]).to_dict("records")

    def cost(self, row) -> float:
        """Of a drafter and shape, a round over a plain round at batch 1; NaN where drafting was not timed, or a model's
        tree is grown from a trace. A round in which the drafter has nothing is a plain one.
        """
        price = self.prices.get(row.drafter) if row.target == self.target else None
        if price is None:
            return float("nan")
        free = not price.once and not price.level(1)
        if not free and row.family in FROM_TRACE:
            return float("nan")
        drafting = 0.0 if free else price.draft(named(f"{row.family}@{row.budget}"))
        share = row.drafted / row.budget
        return 1 - share + share * (drafting + price.check(row.budget)) / price.plain


def claims() -> list[dict]:
    """The rows of the weblogs' own draft lengths and pairs."""
    lengths = [dict(grid=LENGTH, row=f"chain:{claim.length}", claimed=f"{claim.speedup:g}",
                    claimed_rate=claim.acceptance, claimed_saved=claim.saved)
               for claim in pd.DataFrame(CLAIMS).itertuples()]
    return lengths + [dict(grid=PAIR, row=pair, claimed=f"{speedup:g}", claimed_rate=rate, claimed_memory=memory)
                      for pair, (rate, speedup, memory) in BY_PAIR.items()]


def _shape(rows: pd.DataFrame) -> pd.Series:
    """Names of shapes, from their families and budgets."""
    return rows["family"] + np.where(rows["family"] == "chain", ":", "@") + rows["budget"].astype(str)
