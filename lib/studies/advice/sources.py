"""The tables of two weblogs on their own grid, beside what this run measured: by draft length, by pair of models, by
task and by scenario. Acceptance is that of notebook 02, by replay of greedy text before a loop; speeds follow from it
and from the costs that notebook 06 timed at batch 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.cost import formulas
from lib.cost.recommending import Found
from lib.cost.round_cost import RoundCost
from lib.lab import stats
from lib.studies.acceptance import summary
from lib.studies.drafters.summary import BY_PAIR, BY_TASK, CALLED
from lib.trees import shapes

LENGTH, PAIR, TASK, SCENARIO = "draft length", "pair", "task", "scenario"
OF_PAIRS = 5  # draft tokens of the chains with which pairs are compared
# What a weblog recommends, and the kinds of text here that are closest to it.
SCENARIOS = {"code completion": ("EAGLE, 5 to 8", ("coding", "code")),
             "chat": ("EAGLE, 3 to 5", ("writing", "roleplay", "humanities", "dialogue")),
             "documents": ("n-grams, 4 to 6", ("summarization", "rag", "extraction", "summary")),
             "translation in real time": ("not recommended", ("translation",))}
EMPTY = dict(target="", drafter="", shape="", dtype="", machine="", n_prompts=0, claimed="") | dict.fromkeys(
    ["rate", "rate_low", "rate_high", "tokens", "saved", "speedup", "speedup_low", "speedup_high", "memory",
     "claimed_rate", "claimed_saved", "claimed_memory"], float("nan"))


@dataclass(frozen=True)
class Measured:
    """What the tables are made of.

    rows: replayed rounds, from `rounds_of`. prices: the cost of rounds at batch 1 by drafter, a draft model's under its
    name, of drafters that were timed; a drafter without one has no speed. target, dtype, machine: of these costs.
    sizes: numbers of each model.
    """

    rows: pd.DataFrame
    prices: Mapping[str, RoundCost]
    target: str
    dtype: str
    machine: str
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, run: Mapping[str, pd.DataFrame], found: Found, machine: str) -> "Measured":
        """What a run's tables of notebook 02 hold, at the costs that the recommendation rests on."""
        prices = dict(found.prices.get(1, {}))
        models = {each.entrant.pair.drafter_name: each.entrant.name for each in found.tried
                  if each.entrant.spec == "model" and each.entrant.name in prices}
        return cls(rounds_of(run["acceptance"], run["chains"]),
                   prices | {name: prices[spec] for name, spec in models.items()}, found.recommendation.target,
                   found.recommendation.dtype, machine, run["models"].set_index("model")["parameters"].to_dict())

    @property
    def own(self) -> pd.DataFrame:
        """The rows of the target that was timed."""
        return self.rows[self.rows["target"] == self.target]

    def estimates(self, rows: pd.DataFrame, by: list[str], rng: np.random.Generator) -> pd.DataFrame:
        """By these columns and target, drafter, family and budget: the acceptance rate with its interval, tokens per
        round, the share of target calls saved, and the speedup where drafting was timed.
        """
        keys = list(dict.fromkeys([*by, "target", "drafter", "family", "budget"]))
        length = stats.summarise(rows, keys, "accepted", "rounds", rng).set_index(keys)
        rate = stats.summarise(rows, keys, "accepted", "drafted", rng).set_index(keys)
        sums = rows.groupby(keys, sort=False)[["drafted", "rounds"]].sum()
        found = pd.DataFrame({"rate": rate["value"], "rate_low": rate["low"], "rate_high": rate["high"],
                              "tokens": 1 + length["value"], "saved": 1 - 1 / (1 + length["value"]),
                              "n_prompts": length["n_prompts"], "drafted": sums["drafted"] / sums["rounds"]})
        found = found.reset_index()
        cost = np.array([self.cost(row) for row in found.itertuples()])
        ends = length[["value", "low", "high"]].to_numpy()
        found[["speedup", "speedup_low", "speedup_high"]] = (1 + ends) / cost[:, None]
        shape = found["family"] + np.where(found["family"] == "chain", ":", "@") + found["budget"].astype(str)
        timed = np.isfinite(cost)
        return found.assign(shape=shape, machine=np.where(timed, self.machine, ""), dtype=self.dtype)

    def cost(self, row) -> float:
        """Of a drafter and shape, a round over a plain round at batch 1; NaN where drafting was not timed, or a model's
        tree is grown from a trace. A round in which the drafter has nothing is a plain one.
        """
        price = self.prices.get(row.drafter) if row.target == self.target else None
        if price is None:
            return float("nan")
        free = not price.once and not price.level(1)
        if not free and row.family in summary.GROWN:
            return float("nan")
        drafting = 0.0 if free else price.draft(shapes.at_budget(row.family, row.budget))
        share = row.drafted / row.budget
        return 1 - share + share * (drafting + price.check(row.budget)) / price.plain


def rounds_of(acceptance: pd.DataFrame, chains: pd.DataFrame) -> pd.DataFrame:
    """The rows that headlines rest on, of all pairs, from the tables "acceptance" and "chains"."""
    both = pd.concat([acceptance, chains.assign(family="chain", depth=chains["budget"])], ignore_index=True)
    rows = summary.clean(both).drop_duplicates([*summary.SETTING, "prompt"])
    return pd.concat([summary.headline(rows, pair) for pair in rows["pair"].unique()], ignore_index=True)


def grid(measured: Measured, rng: np.random.Generator) -> pd.DataFrame:
    """The table "source_grid"."""
    parts = [by_length(measured, rng), by_pair(measured, rng), by_task(measured, rng), by_scenario(measured, rng)]
    rows = pd.DataFrame([EMPTY | row for part in parts for row in part])
    return rows[["grid", "row", *EMPTY]]


def by_length(measured: Measured, rng: np.random.Generator) -> Iterator[dict]:
    """Chains of the lengths of the weblog's table, for each drafter of the target."""
    claims = pd.DataFrame(formulas.CLAIMS).set_index("length")
    own = measured.own
    own = own[(own["family"] == "chain") & own["budget"].isin(claims.index)]
    for row in _told(measured.estimates(own, [], rng).sort_values("budget", kind="stable")):
        claim = claims.loc[row.pop("budget")]
        yield row | dict(grid=LENGTH, row=row["shape"], claimed=f"{claim['speedup']:g}",
                         claimed_rate=claim["acceptance"], claimed_saved=claim["saved"])


def by_pair(measured: Measured, rng: np.random.Generator) -> Iterator[dict]:
    """Each target with each model that drafts for it, at one length; then the weblog's pairs."""
    rows, sizes = measured.rows, measured.sizes
    rows = rows[(rows["family"] == "chain") & (rows["budget"] == OF_PAIRS) & rows["drafter"].isin(list(sizes))]
    for row in _told(measured.estimates(rows, [], rng)):
        del row["budget"]
        yield row | dict(grid=PAIR, row=f"{row['target']}/{row['drafter']}",
                         memory=sizes[row["drafter"]] / sizes[row["target"]])
    for pair, (rate, speedup, memory) in BY_PAIR.items():
        yield dict(grid=PAIR, row=pair, claimed=f"{speedup:g}", claimed_rate=rate, claimed_memory=memory)


def by_task(measured: Measured, rng: np.random.Generator) -> Iterator[dict]:
    """Each kind of text with each drafter at its best shape: the fastest on every other prompt, or where its drafting
    was not timed the one of most tokens per round; judged on the other prompts.
    """
    choosing, judging = _halves(measured.own)
    found = measured.estimates(choosing, [], rng)
    timed = found.groupby("drafter")["speedup"].transform(lambda own: own.notna().any())
    found = found.assign(speed=found["speedup"].where(timed, found["tokens"])).dropna(subset=["speed"])
    best = found.sort_values("speed").groupby("drafter").tail(1)
    judging = judging.merge(best[["drafter", "family", "budget"]], on=["drafter", "family", "budget"])
    for row in _told(measured.estimates(judging, ["kind"], rng)):
        del row["budget"]
        kind = row.pop("kind")
        claim = BY_TASK.get(CALLED.get(kind, kind))
        yield row | dict(grid=TASK, row=kind, claimed=f"EAGLE {claim[0]}, n-grams {claim[1]}" if claim else "")


def by_scenario(measured: Measured, rng: np.random.Generator) -> Iterator[dict]:
    """For the kinds of text of each scenario the drafter and length of a chain that are fastest on every other prompt,
    judged on the others, beside what the weblog recommends; none where no drafter was timed.
    """
    kinds = {kind: name for name, (_, own) in SCENARIOS.items() for kind in own}
    own = measured.own.assign(scenario=measured.own["kind"].map(kinds))
    choosing, judging = _halves(own[(own["family"] == "chain") & own["scenario"].notna()])
    found = measured.estimates(choosing, ["scenario"], rng).dropna(subset=["speedup"])
    best = found.sort_values("speedup").groupby("scenario").tail(1)[["scenario", "drafter", "family", "budget"]]
    for row in _told(measured.estimates(judging.merge(best), ["scenario"], rng)):
        del row["budget"]
        name = row.pop("scenario")
        yield row | dict(grid=SCENARIO, row=name, claimed=SCENARIOS[name][0])


def _halves(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of every other prompt in the order of their kinds, and those of the others."""
    order = rows[["kind", "prompt"]].drop_duplicates().sort_values(["kind", "prompt"])["prompt"]
    chooses = rows["prompt"].isin(order.iloc[::2])
    return rows[chooses], rows[~chooses]


def _told(found: pd.DataFrame) -> list[dict]:
    return found.drop(columns=["family", "drafted"]).to_dict("records")
