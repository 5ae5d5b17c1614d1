"""The answer: for each backend and batch size the fastest way to draft, raced on prompts that did not choose it.

The few ways of the highest predictions are raced on choosing prompts, the best chain and tree among them; the highest
estimate wins, and of those nearly as fast the one with the fewest nodes. The winner, the best chain, the best tree and
plain decoding are then raced on judging prompts, and only these figures are reported. `recommendation.json` holds them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path

import numpy as np
import pandas as pd

from lib.engines.methods import PLAIN, Way
from lib.lab import atomic_file, stats
from lib.lab.stats import Estimate
from lib.study.bench import CHOOSING, JUDGING, LOOPING, Bench, without_loops
from lib.study.acceptance import record, replay
from lib.study.candidates import timed_ways
from lib.study.costs import Costs, of_backend
from lib.study.costs import measure as costs_of
from lib.study.predict import predict
from lib.study.race import Logs, measured_logs, race, speed

FILE = "recommendation.json"
NEARLY = 0.97  # of the highest estimate: of ways this fast the one with the fewest nodes wins
MOST_RACED = 8
ONE = Estimate(1.0, 1.0, 1.0, 0, 0)


def measure(bench: Bench, ways_of, drafters: Mapping[str, object], units: Mapping[int, int],
            most_nodes: int) -> dict[str, object]:
    """All five steps for a backend: its recommendations by batch size. ways_of: gives the ways, of the recorded text of
    the choosing prompts. units: raced in each part, by batch size.
    """
    recorded = record(bench, drafters)
    lengths = (recorded.trace.lengths + 1).tolist()
    bench = without_loops(bench)
    ways = ways_of(recorded.trace.select(np.array(bench.rows(CHOOSING))))
    replayed = replay(bench, recorded, ways)
    costs = Costs.of(costs_of(bench, timed_ways(ways), most_nodes))
    logs = predict(bench, costs, ways, replayed, lengths)
    by_batch = [recommend(bench, ways, logs, batch, units[batch]) for batch in bench.batches]
    return dict(backend=bench.backend.name, looping=bench.parts.count(LOOPING), by_batch=by_batch)


def recommend(bench: Bench, ways: Sequence[Way], logs: Logs, batch: int, units: int,
              most_raced: int = MOST_RACED) -> dict[str, object]:
    """The recommendation of a backend at a batch size, as it stands in the file. units: calls that are raced in each
    part.
    """
    able = {way.name: way for way in ways if batch in bench.batches_of(way)}
    chosen = finalists(able, logs, batch, most_raced)
    race(bench, list(chosen.values()), batch, CHOOSING, units)
    timed = _timed(bench, batch, CHOOSING)
    estimates = {name: speed(bench, timed, logs, name, batch, CHOOSING) for name in chosen}
    winner = best({PLAIN: 1.0} | {name: estimate.value for name, estimate in estimates.items()}, able)
    roles = {"recommended": winner}
    for role, is_of in (("chain", lambda way: way.is_chain), ("tree", lambda way: not way.is_chain)):
        values = {name: estimates[name].value for name in chosen if is_of(able[name])}
        if values:
            roles[role] = winner if winner in values else best(values, able)
    judged = list(dict.fromkeys(name for name in roles.values() if name != PLAIN))
    race(bench, [able[name] for name in judged], batch, JUDGING, units)
    return judge(bench, able, logs, batch, roles) | {
        "raced": {name: estimate_row(estimate) for name, estimate in estimates.items()}}


def finalists(ways: Mapping[str, Way], logs: Logs, batch: int, most: int) -> dict[str, Way]:
    """The ways that are raced: those of the highest predictions on choosing units, the best chain and the best tree
    among them, and of equal shapes of one drafter one.
    """
    predicted = {name: float(np.nanmean(logs[name, batch, CHOOSING])) for name in ways if (name, batch, CHOOSING) in logs}
    ranked = sorted(predicted, key=lambda name: (-predicted[name], ways[name].nodes))
    first = [next((name for name in ranked if ways[name].is_chain == chain), None) for chain in (True, False)]
    names = list(dict.fromkeys([*(name for name in first if name), *ranked]))[:most]
    return {name: ways[name] for name in ranked if name in names}


def best(speeds: Mapping[str, float], ways: Mapping[str, Way]) -> str:
    """The name that wins: of the ways nearly as fast as the fastest the one with the fewest nodes."""
    known = {name: value for name, value in speeds.items() if not isnan(value)}
    least = NEARLY * max(known.values())
    return min((name for name, value in known.items() if value >= least),
               key=lambda name: (ways[name].nodes if name in ways else 0, -known[name]))


def judge(bench: Bench, ways: Mapping[str, Way], logs: Logs, batch: int, roles: Mapping[str, str]) -> dict[str, object]:
    """What the race on judging units says of the ways in these roles."""
    rows = _timed(bench, batch, JUDGING)
    winner = roles["recommended"]

    def over(way: str, base: str) -> Estimate:
        """A way's speed over another's."""
        return ONE if way == base else speed(bench, rows, logs, way, batch, JUDGING, base)

    reason, whole = "", ONE
    if winner != PLAIN:
        measured = over(winner, PLAIN)
        calls = measured_logs(rows, winner, whole=True)
        whole = stats.of_logs([calls.to_numpy()], bench.generator("whole", winner, batch))
        length = break_even(rows, winner, batch)
        if measured.value <= 1 or whole.value <= 1:
            reason = (f"{winner} decodes {said(measured)} times as fast as plain decoding on judging prompts, whole "
                      f"calls {said(whole)} times; they break even "
                      + (f"at answers of {length:.0f} tokens" if np.isfinite(length) else "at no length of answer"))
            winner = PLAIN
    facts = dict(backend=bench.backend.name, batch=batch, way=winner, reason=reason, speed=over(winner, PLAIN),
                 whole_calls=whole if winner != PLAIN else ONE, setting="", **described(ways.get(winner)))
    if winner != PLAIN:
        facts |= dict(setting=bench.backend.line(ways[winner]), break_even=break_even(rows, winner, batch))
    for role in ("chain", "tree"):
        if role in roles:
            facts[f"best_{role}"] = dict(way=roles[role], speed=estimate_row(over(roles[role], PLAIN)))
    if {"chain", "tree"} <= roles.keys():
        paired = over(roles["tree"], roles["chain"])
        facts["tree_over_chain"], facts["trees"] = paired, about_trees(paired)
    return {key: estimate_row(value) if isinstance(value, Estimate) else value for key, value in facts.items()}


def _timed(bench: Bench, batch: int, part: str) -> pd.DataFrame:
    """The rows of the table "timed" of a backend, batch size and part."""
    rows = of_backend(bench.store.open("timed").frame(), bench)
    return rows[(rows["batch"] == batch) & (rows["part"] == part)]


def break_even(rows: pd.DataFrame, way: str, batch: int) -> float:
    """Tokens of an answer from which on whole calls are as fast as plain decoding's; infinite where none is.

    A call of n tokens takes its prefill, which gives the first one, and n - 1 times the seconds per token.
    """
    def parts(name: str) -> tuple[float, float]:
        """Seconds of the prefill, and per further token of the mean answer."""
        calls = rows[rows["way"] == name]
        return (calls["prefill"].mean(),
                (calls["seconds"] - calls["prefill"]).sum() / max(1e-9, (calls["tokens"] / batch - 1).sum()))

    (prefill, per_token), (plain_prefill, plain_per_token) = parts(way), parts(PLAIN)
    if prefill <= plain_prefill and per_token <= plain_per_token:
        return 1.0
    if per_token >= plain_per_token:
        return float("inf")
    return 1 + (prefill - plain_prefill) / (plain_per_token - per_token)


def described(way: Way | None) -> dict[str, object]:
    """A way's drafter and tree; those of plain decoding for None."""
    if way is None:
        return dict(drafter="none", tree="chain:0", nodes=0, depth=0)
    return dict(drafter=way.method, tree=way.shape_name, nodes=way.nodes, depth=way.shape.max_depth)


# ---------------------------------------------------------------------------------------------------------------- words


def about_trees(paired: Estimate) -> str:
    """What the speed of the best tree over the best chain tells, as an equivalence where neither is shown to be faster.
    """
    if isnan(paired.low):
        return "too few units for a claim on trees"
    if paired.low > 1:
        return f"a tree pays: {said(paired)} times as fast as the best chain"
    if paired.high < 1:
        return f"no tree pays: {said(paired)} times as fast as the best chain"
    return (f"the best tree is between {100 * (1 - paired.low):.0f} % slower and {100 * (paired.high - 1):.0f} % faster "
            "than the best chain")


def said(estimate: Estimate) -> str:
    """An estimate with its interval and its number of raced and of all units."""
    return f"{stats.format_estimate(estimate)} (n = {estimate.raced} of {estimate.n})"


def estimate_row(estimate: Estimate) -> dict[str, object]:
    """value, low, high, n and raced, null where they are not known."""
    fields = asdict(estimate).items()
    return {name: None if isinstance(value, float) and isnan(value) else value for name, value in fields}


def save(folder: Path, recommendation: Mapping[str, object]) -> None:
    """Writes the file into a run's folder, in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_file.replace(folder / FILE, json.dumps(recommendation, indent=1).encode() + b"\n")
