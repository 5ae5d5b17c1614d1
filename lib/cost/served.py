"""What to use where the target is served elsewhere: acceptance by replay of its logged answers, and costs that were
measured where it is served, or that a roofline computes. Nothing is timed here, so that all speeds are predicted.

A table of costs is a CSV file with the columns batch, nodes, check_ms and, for drafters with a model, draft_ms: a row
for each batch size and number of drafted tokens per sequence, 0 among them, which is a plain step. `measure_served`, a
script that needs torch and transformers alone, writes one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib.cost import judging, roofline
from lib.cost.candidates import Candidate, Entrant, Limits, static
from lib.cost.engines.registry import settings
from lib.cost.engines.schedule import scheduled
from lib.cost.engines.weights import places
from lib.cost.recommendation import TOO_FEW, Interval, jsonable
from lib.cost.round_cost import Curve, RoundCost
from lib.drafters.drafter import ROOT_ALONE
from lib.lab import atomic_file, stats
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
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no costs at {path.resolve()}; give a CSV file with the columns {', '.join(COLUMNS)} "
                                f"and {DRAFT}, or one of {', '.join(roofline.HARDWARE)}")
    try:
        rows = pd.read_csv(path)
        rows = rows.astype({name: float for name in rows.columns.intersection([*COLUMNS, DRAFT])})
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is no table of costs ({' '.join(str(error).split())}); give numbers in the columns "
                         f"{', '.join(COLUMNS)}") from None
    if missing := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"{path} lacks the column {missing[0]}; it has {', '.join(rows.columns)}")
    rows[DRAFT] = rows[DRAFT] if DRAFT in rows else np.nan
    _check(path, rows)
    return {int(batch): _of_rows(path, int(batch), own) for batch, own in rows.groupby("batch")}


def _check(path: Path, rows: pd.DataFrame) -> None:
    """ValueError for a number that cannot be what its column says."""
    for name, least in (("batch", 1), ("nodes", 0)):
        wrong = rows[~((rows[name] >= least) & (rows[name] % 1 == 0))]
        if len(wrong):
            raise ValueError(f"{path} has {name} {wrong[name].iloc[0]:g}; give a whole number from {least} on")
    for name in ("check_ms", DRAFT):
        wrong = rows[~((rows[name] > 0) & np.isfinite(rows[name]) | rows[name].isna() & (name == DRAFT))]
        if len(wrong):
            raise ValueError(f"{path} has {name} {wrong[name].iloc[0]:g}; give milliseconds, more than 0")


def _of_rows(path: Path, batch: int, rows: pd.DataFrame) -> RoundCost:
    if not (rows["nodes"] == 0).any() or not (rows["nodes"] > 0).any():
        held = ", ".join(str(int(count)) for count in sorted(rows["nodes"]))
        raise ValueError(f"{path} has at batch {batch} the nodes {held}; give 0, a plain step, and one or more larger "
                         "numbers")
    check = Curve.through(rows["nodes"], rows["check_ms"] / 1000)
    draft = rows[DRAFT].mean() / 1000
    return RoundCost(float(check(0)), 0.0, Curve(np.array([1.0]), np.array([draft])), check)


def computed(hardware: str, target: float, drafter: float, batches: Sequence[int], most: int) -> dict[int, RoundCost]:
    """By batch size the cost of rounds on one of `roofline.HARDWARE`, for models of so many parameters."""
    machine, found = roofline.HARDWARE[hardware], {}
    for batch in batches:
        plain, step = (machine.step(size, batch) for size in (target, drafter))
        level = RoundCost(plain, 0.0, Curve(np.array([1.0]), np.array([step])), Curve.through([1], [plain]))
        share = roofline.on(machine, level, most, batch)
        found[batch] = RoundCost(plain, 0.0, level.level, Curve(share.check.at, share.check.seconds * plain))
    return found


@dataclass(frozen=True)
class ForBatch:
    """What to use at one batch size. drafter, tree: names; choices: the tree's paths of ranks. budget: drafted tokens
    at most; depth: levels. speedup: over plain decoding; over_chain: over the drafters' fastest chain; kinds: the
    speedup by kind of text; all predicted, on answers that did not choose. plain: whether nothing is faster than plain
    decoding. raced: the speed of each drafter's fastest candidate over that of the recommended one, by name, paired on
    the answers that choose, n of them. settings: as `engines.settings` gives them, or `with_schedule`.
    """

    batch: int
    drafter: str
    tree: str
    choices: Sequence[Sequence[int]]
    budget: int
    depth: int
    chain: str
    speedup: Interval
    over_chain: Interval
    kinds: Mapping[str, Interval]
    plain: bool
    raced: Mapping[str, Interval]
    n: int
    settings: Sequence[Mapping[str, str]]

    @property
    def ties(self) -> str:
        """A sentence on which drafters' fastest candidates cannot be told apart from the recommended one."""
        if self.n < stats.FEWEST:
            return f"{len(self.raced)} drafters stand beside it on n = {self.n} answers, {TOO_FEW}"
        tied = "; ".join(f"{name} {over}" for name, over in self.raced.items() if not over.is_below(1))
        return f"tied with it: {tied or 'none'} (of {len(self.raced)} other drafters, n = {self.n} answers)"


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
        lines = [f"{self.target}, {self.answers} logged answers at temperature {self.temperature:g}, costs {source}; "
                 "predicted, nothing was timed"]
        for own in self.by_batch:
            lines.append(f"batch {own.batch}: plain decoding, since no candidate is faster" if own.plain else
                         f"batch {own.batch}: {own.drafter} with {own.tree} (budget {own.budget}, depth {own.depth}), "
                         f"{own.speedup} times plain decoding, {own.over_chain} times the best chain ({own.chain})")
            lines += [] if own.plain else [f"  {own.ties}"]
            lines += [] if own.plain else [f"  {one['engine']} ({one['versions']}; {one['draft']}): {one['setting']}"
                                           for one in own.settings]
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Writes a JSON file in one step; an interval is [value, low, high], null where an end is not known."""
        atomic_file.replace(Path(path), json.dumps(jsonable(asdict(self)), indent=1, allow_nan=False).encode() + b"\n")


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
    return [each for one in entrants for each in static(one, recorded, limits)]


def recommend(tried: Sequence[Candidate], prices: Mapping[str, RoundCost], batch: int, texts: Texts,
              rng: np.random.Generator) -> ForBatch:
    """The fastest candidate on the answers that choose, at the costs of a batch size, or the one with the fewest nodes
    of those nearly as fast, judged on the others; prices: as for `price_of`.
    """
    long = set.intersection(*(set(each.prompts) for each in tried))  # a deep tree has no round in a short answer
    choosing, others = ({name for name, is_in in zip(texts.names, part) if is_in} & long for part in halves(texts))
    if not choosing or not others:
        raise ValueError(f"{len(long)} of {len(texts.names)} answers are long enough for the deepest tree: give longer "
                         "answers, or a smaller depth")
    on_half = {each.name: _part(each, choosing) for each in tried}
    priced = {each.name: price_of(each, prices) for each in tried}
    speed = {each.name: on_half[each.name].speedup(priced[each.name], batch) for each in tried}
    best = tried[judging.choose([speed[each.name] for each in tried], [each.shape.budget for each in tried])]
    rivals = {}
    for each in sorted(tried, key=lambda each: -speed[each.name]):
        if each.entrant is not best.entrant:
            rivals.setdefault(each.entrant.name, each)
    chain = max((each for each in tried if each.is_chain), key=lambda each: speed[each.name])
    own_chain = max((each for each in tried if each.is_chain and each.entrant is best.entrant), default=None,
                    key=lambda each: speed[each.name])
    judged, beside = _part(best, others), _part(chain, others)
    by_kind: dict[str, set[str]] = {}
    for name, kind in zip(texts.names, texts.kinds):
        by_kind.setdefault(kind, set()).update({name} & others)
    chained = own_chain.shape if own_chain else ROOT_ALONE
    return ForBatch(
        batch, best.entrant.name, best.label, [list(path) for path in best.shape.choices()], best.shape.budget,
        best.shape.max_depth, chain.name, _over_plain(judged, priced[best.name], batch, rng),
        _over(judged, priced[best.name], beside, priced[chain.name], batch, rng),
        {kind: _over_plain(_part(best, names), priced[best.name], batch, rng)
         for kind, names in by_kind.items() if names},
        speed[best.name] <= 1,
        {each.name: _over(on_half[each.name], priced[each.name], on_half[best.name], priced[best.name], batch, rng)
         for each in rivals.values()},
        len(choosing), settings(best.entrant.spec, best.shape, chained, places(best.entrant)))


def with_schedule(by_batch: Sequence[ForBatch]) -> list[ForBatch]:
    """The same with `engines.scheduled` settings."""
    rows = scheduled({own.batch: None if own.plain else own.settings for own in by_batch})
    return [replace(own, settings=rows[own.batch]) for own in by_batch]


def price_of(each: Candidate, prices: Mapping[str, RoundCost]) -> RoundCost:
    """The cost of a drafter's rounds, of those by the names of drafters with a model; "" is of all others, for which
    drafting is free. ValueError where a model has no cost.
    """
    if not each.passes:
        return replace(prices[""], level=Curve.through([1], [0.0]))
    own = prices[each.entrant.name]
    if np.isnan(own.level(1)):
        raise ValueError(f"drafter {each.entrant.name!r} has a model, but the costs have no {DRAFT}: give the time of "
                         "its forward pass, or leave it out")
    return own


def _part(each: Candidate, names: set[str]) -> Candidate:
    """The candidate on some answers."""
    kept = np.array([name in names for name in each.prompts])
    return replace(each, prompts=[name for name in each.prompts if name in names], accepted=each.accepted[kept],
                   rounds=each.rounds[kept])


def _over_plain(each: Candidate, price: RoundCost, batch: int, rng: np.random.Generator) -> Interval:
    found = stats.ratio(each.accepted + each.rounds, each.rounds, rng)
    share = price.plain / each.seconds(price, batch)
    return Interval(found.value * share, found.low * share, found.high * share)


def _over(each: Candidate, price: RoundCost, chain: Candidate, chain_price: RoundCost, batch: int,
          rng: np.random.Generator) -> Interval:
    found = stats.difference(each.accepted + each.rounds, each.rounds, chain.accepted + chain.rounds, chain.rounds, rng,
                             relative=True)
    share = chain.seconds(chain_price, batch) / each.seconds(price, batch)
    return Interval(found.value * share, found.low * share, found.high * share)
