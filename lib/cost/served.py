"""What to use where the target is served elsewhere: acceptance by replay of its logged answers, and costs that were
measured where it is served, or that a roofline computes. Nothing is timed here, so that all speeds are predicted.

A table of costs is a CSV file with the columns batch, nodes, check_ms and, for drafters with a model, draft_ms: a row
for each batch size and number of drafted tokens per sequence, 0 among them, which is a plain step. `measure_served`, a
script that needs torch and transformers alone, writes one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib.cost import judging, roofline
from lib.cost.candidates import Candidate, Entrant
from lib.engines import settings
from lib.cost.recommendation import NO_DRAFTER, NO_TREE, ONE, PLAIN, ForBatch, Interval, Raced, write
from lib.cost.round_cost import FREE, Curve, RoundCost
from lib.drafters.drafter import ROOT_ALONE
from lib.lab import stats
from lib.models.prompts import numbers_in_kind
from lib.replay.logs import LoggedTexts

FILE = "served.json"  # in a run's folder: what `ForLogs.save` writes
COLUMNS = ("batch", "nodes", "check_ms")
DRAFT = "draft_ms"  # one forward pass of the drafter


def read_costs(path: str | Path) -> dict[int, RoundCost]:
    """By batch size the cost of rounds, of a table of costs. FileNotFoundError without the file; ValueError names what
    is missing or cannot be a time.
    """
    path, columns = Path(path).expanduser(), ", ".join(COLUMNS)
    if not path.is_file():
        raise FileNotFoundError(f"no costs at {path.resolve()}; give a CSV file with the columns {columns} and "
                                f"{DRAFT}, or one of {', '.join(roofline.HARDWARE)}")
    try:
        rows = pd.read_csv(path)
        rows = rows.astype({name: float for name in rows.columns.intersection([*COLUMNS, DRAFT])})
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is no table of costs ({' '.join(str(error).split())}); give numbers in the columns "
                         f"{columns}") from None
    if missing := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"{path} lacks the column {missing[0]}; it has {', '.join(rows.columns)}")
    rows[DRAFT] = rows[DRAFT] if DRAFT in rows else np.nan
    whole = "a whole number from {} on"
    for name, right, remedy in (
            ("batch", (rows["batch"] >= 1) & (rows["batch"] % 1 == 0), whole.format(1)),
            ("nodes", (rows["nodes"] >= 0) & (rows["nodes"] % 1 == 0), whole.format(0)),
            ("check_ms", (rows["check_ms"] > 0) & np.isfinite(rows["check_ms"]), "milliseconds, more than 0"),
            (DRAFT, (rows[DRAFT] > 0) & np.isfinite(rows[DRAFT]) | rows[DRAFT].isna(), "milliseconds, more than 0")):
        if not right.all():
            raise ValueError(f"{path} has {name} {rows.loc[~right, name].iloc[0]:g}; give {remedy}")
    prices = {}
    for batch, cells in rows.groupby("batch"):
        if not (cells["nodes"] == 0).any() or not (cells["nodes"] > 0).any():
            known = ", ".join(str(int(count)) for count in sorted(cells["nodes"]))
            raise ValueError(f"{path} has at batch {batch:.0f} the nodes {known}; give 0, a plain step, and one or "
                             "more larger numbers")
        check = Curve.through(cells["nodes"], cells["check_ms"] / 1000)
        level = Curve(np.array([1.0]), np.array([cells[DRAFT].mean() / 1000]))
        prices[int(batch)] = RoundCost(float(check(0)), 0.0, level, check)
    return prices


def computed(hardware: str, target: float, drafter: float, batches: Sequence[int], most: int) -> dict[int, RoundCost]:
    """By batch size the cost of rounds on one of `roofline.HARDWARE`, for models of so many parameters."""
    machine, prices = roofline.HARDWARE[hardware], {}
    for batch in batches:
        plain, step = (machine.step(size, batch) for size in (target, drafter))
        checks = roofline.checks(machine, most, batch).times(plain)
        prices[batch] = RoundCost(plain, 0.0, Curve(np.ones(1), np.array([step])), checks)
    return prices


@dataclass(frozen=True)
class ForLogs:
    """What to use by batch size. costs: where they are from, a file's name or hardware; temperature: of the answers."""

    target: str
    costs: str
    temperature: float
    answers: int
    by_batch: Sequence[ForBatch]

    def text(self) -> str:
        """The recommendation in lines of text."""
        source = f"computed by a roofline of {self.costs}" if self.costs in roofline.HARDWARE else f"of {self.costs}"
        head = (f"{self.target}, {self.answers} logged answers at temperature {self.temperature:g}, costs {source}; "
                "predicted, nothing was timed")
        return "\n".join([head, *(line for candidate in self.by_batch for line in candidate.lines)])

    def save(self, path: str | Path) -> None:
        """Writes a JSON file in one step; an interval is [value, low, high], null where an end is not known."""
        write(path, self)


def halves(texts: LoggedTexts) -> tuple[np.ndarray, np.ndarray]:
    """bool[N]: the answers that choose, every second one of each kind, and those that judge; a conversation is one."""
    chosen = np.array(numbers_in_kind(texts.names, texts.kinds)) % 2 == 0
    return (chosen, ~chosen) if not chosen.all() else (chosen, chosen)


def recommend(tried: Sequence[Candidate], prices: Mapping[str, RoundCost], batch: int, texts: LoggedTexts,
              rng: np.random.Generator) -> ForBatch:
    """The fastest candidate on the answers that choose, at the costs of a batch size, or the one with the fewest nodes
    of those nearly as fast, judged on the others; prices: as for `price_of`. Plain decoding has no nodes.
    """
    long = set.intersection(*(set(candidate.prompts) for candidate in tried))  # else a deep tree has no round there
    names = [stats.unit(name) for name in texts.names]
    choosing, others = ({name for name, is_in in zip(names, part) if is_in} & long for part in halves(texts))
    if not choosing or not others:
        raise ValueError(f"{len(long)} of {len(set(names))} answers are long enough for the deepest tree: give longer "
                         "answers, or a smaller depth")
    plain = replace(tried[0], entrant=Entrant(NO_DRAFTER, NO_DRAFTER, None, None), label=NO_TREE, shape=ROOT_ALONE,
                    accepted=0 * tried[0].accepted, sizes=np.ones(1), passes={})
    speeds = {candidate.name: part_of(candidate, choosing).speedup(price_of(candidate, prices), batch)
              for candidate in (plain, *tried)}
    ranked = sorted((plain, *tried), key=lambda candidate: -speeds[candidate.name])
    best = ranked[judging.choose([speeds[candidate.name] for candidate in ranked],
                                 [candidate.shape.budget for candidate in ranked])]
    chains = [candidate for candidate in ranked if candidate.is_chain and candidate is not plain]
    chain, tree = chains[0], next((candidate for candidate in ranked if candidate.branches), None)
    drafters_chain = next((candidate for candidate in chains if candidate.entrant is best.entrant), plain)

    def over(first: Candidate, second: Candidate, names: set[str]) -> Interval:
        """The predicted speed of a candidate over that of another, paired on answers of these names."""
        if first is second:
            return ONE
        one, base = part_of(first, names), part_of(second, names)
        share = base.seconds(price_of(base, prices), batch) / one.seconds(price_of(one, prices), batch)
        ratio = stats.difference(one.accepted + one.rounds, one.rounds, base.accepted + base.rounds, base.rounds, rng,
                                 relative=True)
        return Interval(*(share * end for end in (ratio.value, ratio.low, ratio.high)))

    leaders: dict[str, Candidate] = {}  # the fastest of each drafter
    for candidate in ranked:
        leaders.setdefault(candidate.entrant.name, candidate)
    raced = []
    for leader in leaders.values():
        beside = over(leader, ranked[0], choosing)
        raced.append(Raced(PLAIN if leader is plain else leader.name, leader.shape.budget, speeds[leader.name], beside,
                           not (beside.is_known and beside.is_below(1))))
    by_kind = {kind: {name for name, other in zip(names, texts.kinds) if other == kind} & others
               for kind in dict.fromkeys(texts.kinds)}
    named_chain, named_tree = ({"drafter": one.entrant.name, "tree": one.label} if one else None
                               for one in (chain, tree))
    return ForBatch(
        batch=batch, drafter=best.entrant.name, pair="", tree=best.label,
        choices=[list(path) for path in best.shape.choices()], budget=best.shape.budget, depth=best.shape.max_depth,
        chain=named_chain, predicted=speeds[best.name], speedup=over(best, plain, others),
        over_chain=over(best, chain, others), with_prefill=None,
        kinds={kind: over(best, plain, names) for kind, names in by_kind.items() if names}, tokens_per_second={},
        prompts=len(others), repeats=0,
        settings=settings.settings(best.entrant.spec, best.shape, drafters_chain.shape, settings.places(best.entrant)),
        warnings=[], best_tree=named_tree, tree_over_chain=tree and over(tree, chain, others), raced=raced,
        raced_on=len(choosing), reason="" if best is not plain else "no candidate is faster")


def price_of(candidate: Candidate, prices: Mapping[str, RoundCost]) -> RoundCost:
    """The cost of a drafter's rounds, of those by the names of drafters with a model; "" is of all others, for which
    drafting is free. ValueError where a model has no cost.
    """
    if not candidate.passes:
        return replace(prices[""], level=FREE)
    price = prices[candidate.entrant.name]
    if np.isnan(price.level(1)):
        raise ValueError(f"drafter {candidate.entrant.name!r} has a model, but the costs have no {DRAFT}: give the "
                         "time of its forward pass, or leave it out")
    return price


def part_of(candidate: Candidate, names: set[str]) -> Candidate:
    """The candidate on the answers of these names."""
    known = np.array([name in names for name in candidate.prompts])
    return replace(candidate, prompts=[name for name in candidate.prompts if name in names],
                   accepted=candidate.accepted[known], rounds=candidate.rounds[known])
