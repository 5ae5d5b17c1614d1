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
from lib.cost.candidates import Candidate, Entrant, Limits, static
from lib.cost.engines import places, settings
from lib.cost.recommendation import NO_DRAFTER, NO_TREE, ONE, PLAIN, ForBatch, Interval, Raced, write
from lib.cost.round_cost import Curve, RoundCost
from lib.drafters.drafter import ROOT_ALONE
from lib.lab import stats
from lib.replay.logs import Texts
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace

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
        level = Curve(np.array([1.0]), np.array([step]))
        share = roofline.on(machine, RoundCost(plain, 0.0, level, Curve.through([1], [plain])), most, batch)
        prices[batch] = RoundCost(plain, 0.0, level, Curve(share.check.at, share.check.seconds * plain))
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


def halves(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """bool[N]: the answers that choose, every second one of each kind, and those that judge."""
    seen: dict[str, int] = {}
    choosing = []
    for kind in texts.kinds:
        choosing.append(seen.get(kind, 0) % 2 == 0)
        seen[kind] = seen.get(kind, 0) + 1
    chosen = np.array(choosing)
    return (chosen, ~chosen) if not chosen.all() else (chosen, chosen)


def candidates(entrants: Sequence[Entrant], trace: Trace, texts: Texts, limits: Limits) -> list[Candidate]:
    """Every drafter with its static trees, replayed on all logged answers."""
    recorded = Recorded(trace, texts.prompts)
    return [candidate for one in entrants for candidate in static(one, recorded, limits)]


def recommend(tried: Sequence[Candidate], prices: Mapping[str, RoundCost], batch: int, texts: Texts,
              rng: np.random.Generator) -> ForBatch:
    """The fastest candidate on the answers that choose, at the costs of a batch size, or the one with the fewest nodes
    of those nearly as fast, judged on the others; prices: as for `price_of`. Plain decoding has no nodes.
    """
    long = set.intersection(*(set(each.prompts) for each in tried))  # a deep tree has no round in a short answer
    choosing, others = ({name for name, is_in in zip(texts.names, part) if is_in} & long for part in halves(texts))
    if not choosing or not others:
        raise ValueError(f"{len(long)} of {len(texts.names)} answers are long enough for the deepest tree: give longer "
                         "answers, or a smaller depth")
    nothing = replace(tried[0], entrant=Entrant(NO_DRAFTER, NO_DRAFTER, None, None), label=NO_TREE, shape=ROOT_ALONE,
                      accepted=0 * tried[0].accepted, sizes=np.ones(1), passes={})
    everything = (nothing, *tried)
    speeds = {each.name: _part(each, choosing).speedup(price_of(each, prices), batch) for each in everything}
    ranked = sorted(everything, key=lambda each: -speeds[each.name])
    best = ranked[judging.choose([speeds[each.name] for each in ranked], [each.shape.budget for each in ranked])]
    chains = [each for each in ranked if each.is_chain and each is not nothing]
    own_chain = next((each for each in chains if each.entrant is best.entrant), nothing)
    chain, tree = chains[0], next((each for each in ranked if each.branches), None)

    def over(first: Candidate, second: Candidate, names: set[str]) -> Interval:
        """The predicted speed of a candidate over that of another, paired on answers of these names."""
        if first is second:
            return ONE
        one, base = _part(first, names), _part(second, names)
        share = base.seconds(price_of(base, prices), batch) / one.seconds(price_of(one, prices), batch)
        ratio = stats.difference(one.accepted + one.rounds, one.rounds, base.accepted + base.rounds, base.rounds, rng,
                                 relative=True)
        return Interval(*(share * end for end in (ratio.value, ratio.low, ratio.high)))

    leaders: dict[str, Candidate] = {}  # each drafter's fastest
    for each in ranked:
        leaders.setdefault(each.entrant.name, each)
    beside = {name: over(each, ranked[0], choosing) for name, each in leaders.items()}
    raced = [Raced(PLAIN if each is nothing else each.name, each.shape.budget, speeds[each.name], beside[name],
                   not (beside[name].is_known and beside[name].is_below(1))) for name, each in leaders.items()]
    kinds = {kind: {name for name, other in zip(texts.names, texts.kinds) if other == kind} & others
             for kind in dict.fromkeys(texts.kinds)}
    return ForBatch(
        batch=batch, drafter=best.entrant.name, pair="", tree=best.label,
        choices=[list(path) for path in best.shape.choices()], budget=best.shape.budget, depth=best.shape.max_depth,
        chain=_named(chain), predicted=speeds[best.name], speedup=over(best, nothing, others),
        over_chain=over(best, chain, others), with_prefill=None,
        kinds={kind: over(best, nothing, names) for kind, names in kinds.items() if names}, tokens_per_second={},
        prompts=len(others), repeats=0,
        settings=settings(best.entrant.spec, best.shape, own_chain.shape, places(best.entrant)),
        warnings=[], best_tree=tree and _named(tree), tree_over_chain=tree and over(tree, chain, others), raced=raced,
        raced_on=len(choosing), reason="" if best is not nothing else "no candidate is faster")


def price_of(candidate: Candidate, prices: Mapping[str, RoundCost]) -> RoundCost:
    """The cost of a drafter's rounds, of those by the names of drafters with a model; "" is of all others, for which
    drafting is free. ValueError where a model has no cost.
    """
    if not candidate.passes:
        return replace(prices[""], level=Curve.through([1], [0.0]))
    price = prices[candidate.entrant.name]
    if np.isnan(price.level(1)):
        raise ValueError(f"drafter {candidate.entrant.name!r} has a model, but the costs have no {DRAFT}: give the "
                         "time of its forward pass, or leave it out")
    return price


def _named(candidate: Candidate) -> dict[str, str]:
    return {"drafter": candidate.entrant.name, "tree": candidate.label}


def _part(candidate: Candidate, names: set[str]) -> Candidate:
    """The candidate on some answers."""
    known = np.array([name in names for name in candidate.prompts])
    return replace(candidate, prompts=[name for name in candidate.prompts if name in names],
                   accepted=candidate.accepted[known], rounds=candidate.rounds[known])
