"""Ways to draft and plain decoding in turns: the table "timed", and the speeds that follow from it and from predictions.

A random part of the units is raced, those at the beginning of the order of the table "prompts". The speed of a way is
the mean of the predictions over all units, corrected by how far they were off on the raced ones (`stats.two_phase`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.engines.driver import Decoded
from lib.engines.methods import PLAIN, PLAIN_WAY, Way
from lib.lab import stats
from lib.lab.stats import Estimate
from lib.study.bench import Bench

WARM_TOKENS = 8  # of the untimed call with which each way begins
Logs = Mapping[tuple[str, int, str], np.ndarray]  # by way, batch size and part the predicted log speed of each call


def race(bench: Bench, ways: Sequence[Way], batch: int, part: str, units: int) -> None:
    """Adds the rows of the table "timed" that are missing: the first `units` calls of a part, decoded by these ways and
    by plain decoding in shuffled turns, as many of them at the same time as the backend allows.
    """
    table, calls = bench.store.open("timed"), bench.calls(part, batch)[:units]
    for first in range(0, len(ways), bench.backend.at_once):
        together = [PLAIN_WAY, *ways[first : first + bench.backend.at_once]]
        missing = [(index, way) for index, rows in enumerate(calls) for way in together
                   if (bench.backend.name, batch, way.name, part, bench.call_name(rows), first) not in table.keys()]
        if not missing:
            continue
        bench.say(f"{', '.join(way.name for way in together)} in turns, {len(calls)} calls of {batch}, {part}")
        order = bench.generator("race", part, batch, first)
        with bench.running(*{way.name: way for _, way in missing}.values()) as running:
            for one in running.values():
                one.decode(bench.ids(calls[0]), WARM_TOKENS)
            for index, rows in enumerate(calls):
                due = [way for at, way in missing if at == index]
                for at in order.permutation(len(due)):
                    way = due[at]
                    done = running[way.name].decode(bench.ids(rows), bench.new_tokens, bench.ends)
                    table.append(**timed_row(bench, way, batch, part, rows, first, done))


def timed_row(bench: Bench, way: Way, batch: int, part: str, rows: Sequence[int], turn: int,
              done: Decoded) -> dict[str, object]:
    """The row of a timed call; turn: of the ways that ran at the same time."""
    return dict(backend=bench.backend.name, batch=batch, way=way.name, part=part, call=bench.call_name(rows), turn=turn,
                kind=bench.prompts.kinds[rows[0]], tokens=sum(map(len, done.tokens)), seconds=done.seconds,
                prefill=done.prefill, drafted=done.drafted, accepted=int(sum(done.accepted)))


# --------------------------------------------------------------------------------------------------------------- speeds


def measured_logs(rows: pd.DataFrame, way: str, base: str = PLAIN, whole: bool = False) -> pd.Series:
    """By call the log of a way's speed over another's in the same turn, without prefill or of the whole call.

    rows: of the table "timed", of one backend, batch size and part. Calls whose answers all end at once are left out.
    """
    pace = np.log(rows["tokens"] / (rows["seconds"] if whole else rows["seconds"] - rows["prefill"]))
    pace = pace.where(np.isfinite(pace))
    by_way = rows.assign(pace=pace).pivot(index=["call", "turn"], columns="way", values="pace")
    if way not in by_way or base not in by_way:
        return pd.Series(dtype=float)
    mean = by_way.groupby("call").mean() if way != base else by_way
    both = by_way[way] - by_way[base]
    across = mean[way] - mean[base]  # where they ran in different turns
    return both.dropna().groupby("call").mean() if both.notna().any() else across.dropna()


def speed(bench: Bench, rows: pd.DataFrame, logs: Logs, way: str, batch: int, part: str,
          base: str = PLAIN) -> Estimate:
    """A way's speed over another's on all units of a part: a two-phase estimate, or by the raced units alone where
    replay cannot predict one of the two.
    """
    measured = measured_logs(rows, way, base)
    if measured.empty:
        return stats.UNKNOWN
    calls = bench.calls(part, batch)
    names = [bench.call_name(call) for call in calls]
    predicted = [logs.get((name, batch, part), np.full(len(calls), np.nan)) if name != PLAIN else np.zeros(len(calls))
                 for name in (way, base)]
    difference = pd.Series(predicted[0] - predicted[1], index=names)
    unit_of = dict(zip(names, (bench.units[call[0]] for call in calls)))
    generator = bench.generator("speed", way, base, batch, part)
    if difference[measured.index].isna().any():
        difference = pd.Series(0.0, index=measured.index)
    raced, foreseen, others = (
        values.groupby(unit_of).mean() for values in (measured, difference[measured.index],
                                                      difference.drop(measured.index).dropna()))
    return stats.two_phase(raced.to_numpy(), foreseen[raced.index].to_numpy(), others.to_numpy(), generator)
