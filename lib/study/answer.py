"""The answer: for each backend and batch size the fastest way to draft, raced on prompts that did not choose it.

The few ways of the highest predictions are raced on choosing prompts, the best chain and tree among them; the highest
estimate wins, and of those nearly as fast the one with the fewest nodes. The winner, the best chain, the best tree and
plain decoding are then raced on judging prompts, and only these figures are reported: in the table "answers", and in
`recommendation.json`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pandas as pd

from lib.engines.methods import PLAIN, Way
from lib.lab import atomic_file, stats, tables
from lib.lab.stats import Estimate
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.study.acceptance import replay
from lib.study.bench import CHOOSING, JUDGING, Bench, without_loops
from lib.study.costs import Costs
from lib.study.predict import predict
from lib.study.race import Logs, measured_logs, race, speed, timed

FILE = "recommendation.json"
NEARLY = 0.97  # of the highest estimate: of ways this fast the one with the fewest nodes wins
LEADING = 0.85  # of the highest prediction: drafters this fast with static trees are tried with grown ones
RECOMMENDED, CHAIN, TREE, TREE_OVER_CHAIN = ROLES = ("recommended", "chain", "tree", "tree over chain")
ONE = Estimate(1.0, 1.0, 1.0)


def is_complete(bench: Bench) -> bool:
    """Whether the table "answers" has the recommendation of each batch size."""
    rows = bench.rows_of("answers")
    return {*bench.batches} <= {*rows.loc[rows["role"] == RECOMMENDED, "batch"]}


def measure(bench: Bench, recorded: Recorded, static: Callable[[Trace], list[Way]],
            grown: Callable[[Sequence[str]], list[Way]], costs_for: Callable[[Sequence[Way]], pd.DataFrame], most_raced: int,
            text_bench: Bench | None = None) -> list[Way]:
    """Replay, costs, predictions and races of a backend; adds its rows of the table "answers". Returns all ways.

    recorded: the text on which ways are replayed. static: the ways that compete, of the recorded text of the choosing
    prompts. grown: further ones, of the drafters whose ways have the highest predictions. costs_for: of some ways the
    rows of the table "costs". text_bench: whose text it is, where the backend has none of its own.
    """
    text_bench = without_loops(text_bench or bench)
    bench = replace(bench, parts=text_bench.parts)
    lengths = (recorded.trace.lengths + 1).tolist()

    def predicted(ways: Sequence[Way], part: str) -> Logs:
        """The predictions of ways on a part, with their rounds and their costs."""
        replayed = replay(text_bench, recorded, ways, bench.rows(part))
        return predict(bench, Costs.of(costs_for(ways)), ways, replayed, lengths, part)

    ways = {way.name: way for way in static(recorded.trace.select(np.array(bench.rows(CHOOSING))))}
    logs = predicted(list(ways.values()), CHOOSING)
    more = grown(leading(ways, logs))
    ways, logs = ways | {way.name: way for way in more}, logs | predicted(more, CHOOSING)
    for batch in bench.batches:
        able = {way.name: way for way in ways.values() if batch in bench.batches_of(way)}
        roles = choose(bench, able, logs, batch, most_raced)
        judged = {name: able[name] for name in dict.fromkeys(roles.values()) if name != PLAIN}
        judging = predicted(list(judged.values()), JUDGING)
        race(bench, list(judged.values()), batch, JUDGING, judging)
        answer(bench, judged, judging, batch, roles)
    return list(ways.values())


def leading(ways: Mapping[str, Way], logs: Logs) -> list[str]:
    """The drafters of the ways that are predicted nearly as fast as the fastest at one of the batch sizes."""
    speeds = {key: float(np.exp(np.nanmean(values))) for key, values in logs.items()}
    fastest: dict[int, float] = {}
    for (_, batch), value in speeds.items():
        fastest[batch] = max(fastest.get(batch, 0.0), value)
    return list(dict.fromkeys(ways[name].method for (name, batch), value in speeds.items()
                              if value >= LEADING * fastest[batch]))


# ------------------------------------------------------------------------------------------------------------- choosing


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
    by_group = sorted(by_group.values(), key=ranked.index)
    return list(dict.fromkeys([*by_form.values(), *by_group, *ranked]))[:most]


def fastest_small(speeds: Mapping[str, float], ways: Mapping[str, Way]) -> str:
    """The name of the way with the fewest nodes among those nearly as fast as the fastest."""
    speeds = {name: value for name, value in speeds.items() if not isnan(value)}
    least = NEARLY * max(speeds.values())
    return min((name for name, value in speeds.items() if value >= least),
               key=lambda name: (ways[name].nodes if name in ways else 0, -speeds[name]))


# -------------------------------------------------------------------------------------------------------------- judging


def answer(bench: Bench, ways: Mapping[str, Way], logs: Logs, batch: int, roles: Mapping[str, str]) -> None:
    """Adds the missing rows of the table "answers" for these roles: what predictions and the race say on judging prompts.

    A way that is not faster than plain decoding there, after the prefill or in whole calls, is withdrawn.
    """
    rows = timed(bench, batch, JUDGING)
    answers = []
    for role, name in roles.items():
        estimate = ONE if name == PLAIN else speed(bench, logs, name, batch, JUDGING)
        answers.append(_answer(bench, batch, role, ways.get(name), estimate, rows))
    winner = answers[0]
    if winner["way"] != PLAIN and (winner["value"] <= 1 or winner["whole"] <= 1):
        whole_calls = f", whole calls {winner['whole']:.2f} times" if winner["raced"] else ""
        note = f"{winner['way']} is withdrawn: {winner['value']:.2f} times as fast as plain decoding{whole_calls}"
        answers[0] = _answer(bench, batch, RECOMMENDED, None, ONE, rows) | {"note": note}
    if {CHAIN, TREE} <= {*roles}:
        paired = speed(bench, logs, roles[TREE], batch, JUDGING, roles[CHAIN])
        answers.append(_answer(bench, batch, TREE_OVER_CHAIN, ways[roles[TREE]], paired, rows)
                       | {"note": about_trees(paired)})
    bench.store.open("answers").add(answers)


def _answer(bench: Bench, batch: int, role: str, way: Way | None, estimate: Estimate, rows: pd.DataFrame) -> dict:
    """A row of the table "answers"; way: None for plain decoding."""
    name = way.name if way else PLAIN
    whole = measured_logs(rows, name, whole=True).mean() if way else 0.0
    return dict(backend=bench.backend.name, batch=batch, role=role, way=name, drafter=way.method if way else "none",
                shape=way.shape_name if way else "chain:0", nodes=way.nodes if way else 0, value=estimate.value,
                low=estimate.low, high=estimate.high, n=estimate.n, raced=estimate.raced or 0, whole=float(np.exp(whole)),
                break_even=break_even(rows, name, batch) if way else 0.0, setting=bench.backend.line(way) if way else "",
                note="")


def break_even(rows: pd.DataFrame, way: str, batch: int) -> float:
    """Tokens of an answer from which on whole calls are as fast as plain decoding's; infinite where none is, NaN where
    nothing was timed.

    A call of n tokens takes its prefill, which gives the first one, and n - 1 times the seconds per token.
    """
    def parts(name: str) -> tuple[float, float]:
        """Seconds of the prefill, and per further token of the mean answer."""
        calls = rows[rows["way"] == name]
        tokens = (calls["tokens"] / batch - 1).sum()
        return calls["prefill"].mean(), (calls["seconds"] - calls["prefill"]).sum() / max(1e-9, tokens)

    if rows.empty:
        return float("nan")
    (prefill, per_token), (plain_prefill, plain_per_token) = parts(way), parts(PLAIN)
    if prefill <= plain_prefill and per_token <= plain_per_token:
        return 1.0
    if per_token >= plain_per_token:
        return float("inf")
    return 1 + (prefill - plain_prefill) / (plain_per_token - per_token)


def about_trees(paired: Estimate) -> str:
    """What the speed of the best tree over the best chain tells: an equivalence where neither is shown to be faster."""
    if isnan(paired.low):
        return "too few units for a claim on trees"
    if paired.low > 1:
        return f"a tree pays: {stats.format_estimate(paired)} times as fast as the best chain"
    if paired.high < 1:
        return f"no tree pays: {stats.format_estimate(paired)} times as fast as the best chain"
    return f"the best tree is {stats.equivalence(paired)} than the best chain"


# -------------------------------------------------------------------------------------------------------- the file


def save(folder: Path, answers: pd.DataFrame, settings: pd.DataFrame, facts: Mapping[str, object]) -> None:
    """Writes a run's `recommendation.json` from its tables "answers" and "settings"; facts: mark, target, machine and more.
    """
    by_backend: dict[str, dict[int, dict[str, object]]] = {}
    for row in answers.drop(columns=tables.FINGERPRINT, errors="ignore").to_dict("records"):
        backend, batch, role = (row.pop(name) for name in ("backend", "batch", "role"))
        finite = {key: None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
        by_backend.setdefault(backend, {}).setdefault(batch, {"batch": batch, "engines": []})[role] = finite
    for row in settings.itertuples():
        by_backend[row.backend][row.batch]["engines"].append(
            dict(engine=row.engine, draft=row.draft, setting=row.setting))
    backends = [{"backend": name, "by_batch": list(by_batch.values())} for name, by_batch in by_backend.items()]
    atomic_file.replace(folder / FILE, json.dumps({**facts, "backends": backends}, indent=1).encode() + b"\n")


def mark_of(folder: Path) -> str:
    """What a run's recommendation was made of; empty without one."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8"))["mark"] if path.exists() else ""


def text(folder: Path, most_lines: int = 12) -> str:
    """At most so many lines of a run's recommendation: for each backend and batch size the way, its speed over plain
    decoding, the best chain and tree, and the lines to copy.
    """
    saved = json.loads((folder / FILE).read_text(encoding="utf-8"))
    lines = [f"{saved['target']} on {saved['machine']}; speed over plain decoding after the prefill:"]
    for backend in saved["backends"]:
        for answers in backend["by_batch"]:
            winner = answers[RECOMMENDED]
            shown = [f"best {role} {_described(answers[role])}" for role in (CHAIN, TREE) if role in answers]
            lines.append(f"{backend['backend']}, batch {answers['batch']}: {_described(winner)}; {'; '.join(shown)}")
            settings = [winner["setting"], *(f"{line['engine']} ({line['draft']}): {line['setting']}"
                                             for line in answers["engines"])]
            lines += [f"  {setting}" for setting in settings if setting]
    return "\n".join(lines if len(lines) <= most_lines else [*lines[: most_lines - 1], "  the others are in the report"])


def _described(answer: Mapping[str, object]) -> str:
    """A way with its speed, interval and numbers of units."""
    if answer["way"] == PLAIN:
        return "plain decoding"
    bounds = [float("nan") if answer[name] is None else answer[name] for name in ("value", "low", "high")]
    estimate = Estimate(*bounds, answer["n"], answer["raced"])
    predicted = "" if estimate.raced else "predicted, "
    return f"{answer['way']} {stats.format_estimate(estimate)} ({predicted}{stats.format_counts(estimate)})"
