"""Ways to draft and plain decoding in turns: the table "timed", and the speeds that follow from it and predictions.

A random part of the units is raced, those at the beginning of the order of the table "prompts". The speed of a way is
the mean of the predictions over all units, corrected by how far they were off on the raced ones (`stats.two_phase`).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.engines.methods import PLAIN, PLAIN_WAY, Way
from lib.lab import stats
from lib.lab.stats import Estimate
from lib.study.bench import Bench
from lib.study.predict import Logs

WARM_TOKENS = 8  # of the untimed call with which each way begins
MOST_DRIFT = 1.2  # of plain decoding in a run whose predictions are a claim


def race(bench: Bench, ways: Sequence[Way], batch: int, part: str, logs: Logs = {}, first_turn: int = 0) -> None:
    """Adds the missing rows of the table "timed": the first calls of a part, decoded by these ways and by plain
    decoding in shuffled turns, as many ways at the same time as the backend allows. logs: predictions to note beside.
    first_turn: in the column `turn`, where other ways were raced on the same calls.
    """
    table, calls = bench.store.open("timed"), bench.calls(part, batch)[: bench.raced[batch]]
    texts = {row.prompt: [*map(int, row.ids.split())] for row in bench.rows_of("texts").itertuples()}
    for first in range(0, len(ways), bench.backend.at_once):
        together, turn = [PLAIN_WAY, *ways[first : first + bench.backend.at_once]], first_turn + first
        missing = [[way for way in together if (bench.backend.name, batch, way.name, part,
                                                bench.prompts.names[rows[0]], turn) not in table.keys()]
                   for rows in calls]
        if not any(missing):
            continue
        bench.say(f"{', '.join(way.name for way in together)} in turns, {len(calls)} calls of {batch}, {part}")
        order = bench.generator("race", part, batch, turn)
        with bench.running(*{way.name: way for due in missing for way in due}.values()) as running:
            for decoding in running.values():
                decoding.decode(bench.ids(calls[0]), WARM_TOKENS)
            for number, (rows, due) in enumerate(zip(calls, missing)):
                for index in order.permutation(len(due)):
                    way = due[index]
                    decoded = running[way.name].decode(bench.ids(rows), bench.new_tokens, bench.ends)
                    parted = sum(answer != texts.get(bench.prompts.names[row], answer)[: len(answer)]
                                 for row, answer in zip(rows, decoded.tokens))
                    predicted = np.exp(logs[way.name, batch][number]) if (way.name, batch) in logs else np.nan
                    table.extend([dict(
                        backend=bench.backend.name, batch=batch, way=way.name, part=part,
                        call=bench.prompts.names[rows[0]], turn=turn, tokens=sum(map(len, decoded.tokens)),
                        seconds=decoded.seconds, prefill=decoded.prefill, predicted=predicted, parted=parted,
                        accepted=decoded.accepted if decoded.accepted >= 0 else np.nan)])


def timed(bench: Bench, batch: int, part: str) -> pd.DataFrame:
    """The rows of the table "timed" of the bench's backend, a batch size and a part."""
    rows = bench.rows_of("timed")
    return rows[(rows["batch"] == batch) & (rows["part"] == part)]


def drift(bench: Bench) -> float:
    """How much the pace of plain decoding changed in the run: the slowest over the fastest of its steps when costs were
    timed (quartiles) and in both halves of the races (medians), one prompt at a time; 1 without any.
    """
    costs, races = (bench.rows_of(name).query("batch == 1") for name in ("costs", "timed"))
    races = races[(races["way"] == PLAIN) & (races["tokens"] > 1)]
    paces = 1000 * ((races["seconds"] - races["prefill"]) / (races["tokens"] - 1)).to_numpy()
    seen = [*costs.loc[costs["method"] == PLAIN, ["low", "high"]].to_numpy().ravel(),
            *(np.median(half) for half in np.array_split(paces, 2) if len(half))]
    return max(seen) / min(seen) if seen else 1.0


def speed(bench: Bench, logs: Logs, way: str, batch: int, part: str, base: str = PLAIN) -> Estimate:
    """A way's speed over another's on all units of a part: a two-phase estimate; by the raced units alone where replay
    cannot predict one of the two; by the predictions alone where nothing was raced.
    """
    names = [bench.prompts.names[call[0]] for call in bench.calls(part, batch)]
    logs = {(PLAIN, batch): np.zeros(len(names)), **logs}
    predicted = pd.Series(logs.get((way, batch), np.nan) - logs.get((base, batch), np.nan), index=names)
    by_call = stats.speed_ratio(timed(bench, batch, part)).pivot_table(index="call", columns="way", values="log")
    measured = by_call.reindex(columns=[base, way]).diff(axis=1)[way].dropna()
    if predicted.isna().all():
        predicted = pd.Series(0.0, index=measured.index)
    measured = measured[measured.index.isin(predicted.dropna().index)]
    raced, raced_predicted, others = (
        values.groupby(stats.unit).mean() for values in (
            measured, predicted[measured.index], predicted.drop(measured.index).dropna()))
    generator = bench.generator("speed", way, base, batch, part)
    if raced.empty:
        return stats.of_logs([others.to_numpy()], generator)._replace(raced=0) if len(others) else Estimate()
    return stats.two_phase(raced.to_numpy(), raced_predicted[raced.index].to_numpy(), others.to_numpy(), generator)
