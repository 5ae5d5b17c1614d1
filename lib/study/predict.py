"""The speed of ways to draft over plain decoding in the same backend: rounds by replay times the costs of its steps.

A call decodes its prompts together until its longest answer has ended, so a prediction includes the steps in which only
some of its prompts still run. The prefill is left out.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from lib.engines.methods import Sizes, Way
from lib.lab import stats
from lib.study.bench import Bench
from lib.study.costs import Costs

Replayed = Mapping[str, Mapping[int, Sizes]]  # by way and prompt the rounds


def call_seconds(bench: Bench, costs: Costs, way: Way, rounds: Sequence[Sizes]) -> float:
    """Seconds, after the prefill, of a call whose prompts have these rounds int64[R, 3]."""
    steps = max((len(sizes) for sizes in rounds), default=0)
    grid = np.full((len(rounds), steps, 3), -1)
    for row, sizes in zip(grid, rounds):
        row[: len(sizes)] = sizes
    running, nodes = grid[..., 0] >= 0, np.maximum(grid[..., 0], 0)
    count, drafts = running.sum(0), (np.maximum(grid[..., 2], 0) > 0).any(0)
    drafts |= way.drafter.traits.reads_text  # which looks for a draft in every step
    wide = nodes.max(0) if bench.backend.padded else nodes.sum(0) / np.maximum(count, 1)
    seconds = 0.0
    for rows in np.unique(count[count > 0]):
        chosen = count == rows
        seconds += float(np.sum(costs.check(int(rows), wide[chosen])))
        seconds += float(drafts[chosen].sum()) * costs.draft(way, int(rows))
    return seconds


def plain_seconds(costs: Costs, lengths: Sequence[int]) -> float:
    """Seconds, after the prefill, of a call whose answers have these numbers of tokens."""
    running = np.arange(1, max(lengths))[:, None] < np.asarray(lengths)  # [steps, prompts]
    return float(np.sum(costs.plain(running.sum(1))))


def log_speeds(bench: Bench, costs: Costs, way: Way, rounds: Mapping[int, Sizes], lengths: Sequence[int],
               calls: Sequence[Sequence[int]]) -> np.ndarray:
    """float64[C]: the logarithm of the predicted speed of each call over plain decoding; NaN where every answer is of
    one token. lengths: tokens of each prompt's answer, of which the prefill gives the first.
    """
    logs = []
    for rows in calls:
        plain = plain_seconds(costs, [lengths[row] for row in rows])
        speculative = call_seconds(bench, costs, way, [rounds[row][int(way.at_prompt) :] for row in rows])
        logs.append(np.log(plain / speculative) if plain and speculative else np.nan)
    return np.array(logs)


def predict(bench: Bench, costs: Costs, ways: Sequence[Way], replayed: Replayed, lengths: Sequence[int],
            part: str) -> dict[tuple[str, int], np.ndarray]:
    """By way and batch size `log_speeds` of the calls of a part; writes missing rows of the table "predictions"."""
    logs, rows = {}, []
    for way in ways:
        for batch in bench.batches_of(way):
            values = log_speeds(bench, costs, way, replayed[way.name], lengths, bench.calls(part, batch))
            logs[way.name, batch] = values
            values = values[~np.isnan(values)]
            mean = stats.of_logs([values], bench.generator(part, batch, way.name)) if len(values) else stats.Estimate()
            rows.append(dict(backend=bench.backend.name, batch=batch, way=way.name, part=part, drafter=way.method,
                             shape=way.shape_name, nodes=way.nodes, value=mean.value, low=mean.low, high=mean.high,
                             n=len(values)))
    bench.store.open("predictions").add(rows)
    return logs


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain: expected tokens per round (1 - alpha^(length + 1)) / (1 - alpha), over length * cost
    + 1 (Leviathan et al. 2023, theorem 3.8).

    alpha: the chance that a token is accepted, the same everywhere. cost: seconds of a drafter's step over a target's.
    """
    expected = length + 1 if alpha >= 1 else (1 - alpha ** (length + 1)) / (1 - alpha)
    return expected / (length * cost + 1)


def theoretical_speedup(alpha: float, length: int, cost: float) -> float:
    """The first weblog's factor as it was published, for comparison: (k + 1) / (1 + (k + 1 - E) c) with k = length, c =
    cost and E as in `leviathan_speedup`; c itself where alpha is 1 or more.
    """
    if alpha >= 1:
        return cost
    expected = (1 - alpha ** (length + 1)) / (1 - alpha)
    return (length + 1) / (1 + (length + 1 - expected) * cost)


def best_length(speedup, alpha: float, cost: float, longest: int = 19) -> int:
    """The draft length from 1 to `longest` of the highest factor."""
    return max(range(1, longest + 1), key=lambda length: speedup(alpha, length, cost))
