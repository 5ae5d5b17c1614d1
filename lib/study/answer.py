"""The answer: for each backend and batch size the fastest way to draft, raced on prompts that did not choose it.

The few ways of the highest predictions are raced on choosing prompts, the best chain and tree among them; the highest
estimate wins, and of those nearly as fast the one with the fewest nodes. The winner, the best chain, the best tree and
plain decoding are then raced on judging prompts, and only these figures are reported: in the table "answers", and in
`recommendation.json`.
"""

import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

import numpy as np
import pandas as pd

from lib.engines.methods import PLAIN, Way
from lib.lab import atomic_file, stats, tables
from lib.lab.stats import Estimate
from lib.replay.simulated import Recorded
from lib.study.bench import CHOOSING, JUDGING, Bench, without_loops
from lib.study.predict import Logs, predict
from lib.study.race import MOST_DRIFT, drift, race, speed, timed

FILE = "recommendation.json"
MOST_LINES = 12  # of the recommendation as text
NEARLY = 0.97  # of the highest estimate: of ways this fast the one with the fewest nodes wins
LEADING = 0.85  # of the highest prediction: drafters this fast with static trees are tried with grown ones
RECOMMENDED, CHAIN, TREE = ROLES = ("recommended", "chain", "tree")
TREE_OVER_CHAIN = "tree over chain"  # the role of the row with the speed of one over the other
ONE = Estimate(1.0, 1.0, 1.0)


def is_complete(bench: Bench) -> bool:
    """Whether the table "answers" has the recommendation of each batch size."""
    rows = bench.rows_of("answers")
    return {*bench.batches} <= {*rows.loc[rows["role"] == RECOMMENDED, "batch"]}


def measure(bench: Bench, recorded: Recorded, ways: Sequence[Way], cost_rows: pd.DataFrame, most_raced: int) -> None:
    """Predictions and races of a backend's ways, on a recorded text; adds the backend's rows of the table "answers".

    cost_rows: of the table "costs", with what each way's drafting adds. most_raced: ways, on choosing prompts.
    """
    bench = without_loops(bench)
    logs = predict(bench, recorded, ways, cost_rows, CHOOSING)
    for batch in bench.batches:
        able = {way.name: way for way in ways if batch in bench.batches_of(way)}
        roles = choose(bench, able, logs, batch, most_raced)
        judged = {name: able[name] for name in dict.fromkeys(roles.values()) if name != PLAIN}
        judging = predict(bench, recorded, list(judged.values()), cost_rows, JUDGING)
        race(bench, list(judged.values()), batch, JUDGING, judging)
        answer(bench, judged, judging, batch, roles)


def leading(ways: Sequence[Way], logs: Logs) -> list[str]:
    """The drafters of the ways that are predicted nearly as fast as the fastest at one of the batch sizes."""
    speeds = pd.Series({key: float(np.exp(np.nanmean(values))) for key, values in logs.items()})
    nearly = speeds[speeds >= LEADING * speeds.groupby(level=1).transform("max")].index.get_level_values(0)
    return list(dict.fromkeys(way.method for way in ways if way.name in nearly))


def choose(bench: Bench, ways: Mapping[str, Way], logs: Logs, batch: int, most_raced: int) -> dict[str, str]:
    """By role the name of the way that has it, after a race on choosing prompts."""
    finalists = best_predicted(ways, logs, batch, most_raced)
    race(bench, [ways[name] for name in finalists], batch, CHOOSING, logs)
    speeds = {name: speed(bench, logs, name, batch, CHOOSING).value for name in finalists}
    roles = {RECOMMENDED: fastest_small({PLAIN: 1.0} | speeds, ways)}
    for role, is_chain in ((CHAIN, True), (TREE, False)):
        of_form = {name: value for name, value in speeds.items() if ways[name].is_chain == is_chain}
        if of_form:
            roles[role] = roles[RECOMMENDED] if roles[RECOMMENDED] in of_form else fastest_small(of_form, ways)
    return roles


def best_predicted(ways: Mapping[str, Way], logs: Logs, batch: int, most: int) -> list[str]:
    """The names of at most so many ways that are raced: the best chain and the best tree, then the best of each further
    drafter and form, then those with the highest predictions.
    """
    predictions = {name: float(np.nanmean(logs[name, batch])) for name in ways}
    ranked = sorted(ways, key=lambda name: (-predictions[name], ways[name].nodes))
    by_form = {ways[name].is_chain: name for name in reversed(ranked)}
    by_group = {(ways[name].method, ways[name].is_chain): name for name in reversed(ranked)}
    first = [*sorted(by_form.values(), key=ranked.index), *sorted(by_group.values(), key=ranked.index)]
    return list(dict.fromkeys([*first, *ranked]))[:most]


def fastest_small(speeds: Mapping[str, float], ways: Mapping[str, Way]) -> str:
    """The name of the way with the fewest nodes among those nearly as fast as the fastest."""
    speeds = {name: value for name, value in speeds.items() if not isnan(value)}
    least = NEARLY * max(speeds.values())
    return min((name for name, value in speeds.items() if value >= least),
               key=lambda name: (ways[name].nodes if name in ways else 0, -speeds[name]))


def answer(bench: Bench, ways: Mapping[str, Way], logs: Logs, batch: int, roles: Mapping[str, str]) -> None:
    """Adds the missing rows of the table "answers" for these roles, by predictions and the race on judging prompts.

    A way that is not faster than plain decoding there, after the prefill or in whole calls, is withdrawn. A prediction
    without a race has no interval where plain decoding's pace drifted, since its parts were timed one after another.
    """
    calls, answers, change = timed(bench, batch, JUDGING), [], drift(bench)
    for role, name in roles.items():
        estimate = ONE if name == PLAIN else speed(bench, logs, name, batch, JUDGING)
        answers.append(_answer(bench, batch, role, ways.get(name), estimate, calls))
    winner = answers[0]
    if winner["way"] != PLAIN and (winner["value"] <= 1 or winner["whole"] <= 1):
        whole_calls = f", whole calls {winner['whole']:.2f} times" if winner["raced"] else ""
        note = f"{winner['way']} is withdrawn: {winner['value']:.2f} times as fast as plain decoding{whole_calls}"
        answers[0] = _answer(bench, batch, RECOMMENDED, None, ONE, calls, note)
    if change > MOST_DRIFT:
        bench.say(f"plain decoding's pace changed by {change - 1:.0%}, so that predictions are no claim; raced ways stand "
                  "beside plain decoding in the same turns")
        answers = [row | dict(low=np.nan, high=np.nan) if not row["raced"] else row for row in answers]
    if {CHAIN, TREE} <= {*roles}:
        paired = speed(bench, logs, roles[TREE], batch, JUDGING, roles[CHAIN])
        answers.append(_answer(bench, batch, TREE_OVER_CHAIN, ways[roles[TREE]], paired, calls, about_trees(paired)))
    bench.store.open("answers").add(answers)


def _answer(bench: Bench, batch: int, role: str, way: Way | None, estimate: Estimate, calls: pd.DataFrame,
            note: str = "") -> dict:
    """A row of the table "answers"; way: None for plain decoding."""
    row = dict(backend=bench.backend.name, batch=batch, role=role, value=estimate.value, low=estimate.low,
               high=estimate.high, n=estimate.n, raced=estimate.raced or 0, note=note)
    if way is None:
        return row | dict(way=PLAIN, drafter="none", shape="chain:0", nodes=0, whole=1.0, break_even=0.0, setting="")
    whole = stats.speed_ratio(calls, whole=True).query("way == @way.name").groupby("call")["log"].mean()
    return row | dict(way=way.name, drafter=way.method, shape=way.shape_name, nodes=way.nodes,
                      whole=float(np.exp(whole.mean())),
                      break_even=break_even(calls, way.name, batch), setting=bench.backend.line(way))


def break_even(calls: pd.DataFrame, way: str, batch: int) -> float:
    """Tokens of an answer from which on whole calls are as fast as plain decoding's; infinite where none is, NaN where
    nothing was timed.

    A call of n tokens takes its prefill, which gives the first one, and n - 1 times the seconds per token.
    """
    if calls.empty:
        return float("nan")
    calls = calls.assign(steps=calls["tokens"] / batch - 1, decoding=calls["seconds"] - calls["prefill"])
    by_way = calls.groupby("way")
    prefill, per_token = by_way["prefill"].mean(), by_way["decoding"].sum() / by_way["steps"].sum().clip(lower=1e-9)
    gain = per_token[PLAIN] - per_token[way]
    return 1 + max(0.0, prefill[way] - prefill[PLAIN]) / gain if gain > 0 else float("inf")


def about_trees(paired: Estimate) -> str:
    """What the speed of the best tree over the best chain tells: an equivalence where neither is shown to be faster."""
    if isnan(paired.low):
        return "too few units for a claim on trees"
    if paired.low <= 1 <= paired.high:
        return f"the best tree is {stats.equivalence(paired)} than the best chain"
    claim = "a tree pays" if paired.low > 1 else "no tree pays"
    return f"{claim}: {stats.format_estimate(paired)} times as fast as the best chain"


def save(bench: Bench, machine: str) -> None:
    """Writes a run's `recommendation.json`: target, machine, and the rows of its tables "answers" and "settings"."""
    facts = dict(target=bench.target, new_tokens=bench.new_tokens, machine=machine, choosing=len(bench.rows(CHOOSING)),
                 judging=len(bench.rows(JUDGING)))
    for name in ("answers", "settings"):
        rows = bench.store.open(name).frame().drop(columns=tables.FINGERPRINT)
        facts[name] = json.loads(rows.to_json(orient="records"))
    atomic_file.replace(bench.store.folder / FILE, json.dumps(facts, indent=1).encode() + b"\n")


def text(folder: Path) -> str:
    """At most MOST_LINES lines of a run's recommendation: for each backend and batch size the way, its speed over plain
    decoding, the best chain and tree, and the lines to copy.
    """
    saved = json.loads((folder / FILE).read_text(encoding="utf-8"))
    lines = [f"{saved['target']} on {saved['machine']}; speed over plain decoding after the prefill:"]
    answers = pd.DataFrame(saved["answers"]).astype(dict.fromkeys(["value", "low", "high"], float))
    for setting, rows in answers.groupby(["backend", "batch"], sort=False):
        by_role = {row.role: row for row in rows.itertuples()}
        shown = [f"best {role} {_described(by_role[role])}" for role in (CHAIN, TREE) if role in by_role]
        winner, (backend, batch) = by_role[RECOMMENDED], setting
        lines.append(f"{backend}, batch {batch}: {_described(winner)}; {'; '.join(shown)}")
        lines += [f"  {winner.setting}"] if winner.setting else []
        lines += [f"  {row['engine']} ({row['draft']}): {row['setting']}" for row in saved["settings"]
                  if (row["backend"], row["batch"]) == setting]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "  the rest is in the report"])


def _described(answer) -> str:
    """A way with its speed, interval and numbers of units; answer: a row of the table "answers"."""
    if answer.way == PLAIN:
        return "plain decoding"
    counts = ("" if answer.raced else "predicted, ") + stats.format_counts(answer)
    return f"{answer.way} {stats.format_estimate(answer)} ({counts})"
