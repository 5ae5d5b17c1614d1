"""The speed of ways to draft over plain decoding in the same backend: rounds by replay times the costs of its steps.

A call decodes its prompts together until its longest answer has ended, so a prediction includes the steps in which only
some of its prompts still run. The prefill is left out.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from lib.engines.methods import Sizes, Way
from lib.lab import stats
from lib.replay.simulated import Recorded
from lib.study.acceptance import replay
from lib.study.bench import Bench
from lib.study.costs import Costs

Logs = Mapping[tuple[str, int], np.ndarray]  # by way and batch size the predicted log speed of each call of a part


def predict(bench: Bench, recorded: Recorded, ways: Sequence[Way], cost_rows: pd.DataFrame, part: str) -> Logs:
    """The logarithm of the predicted speed of each call of a part over plain decoding, float64[C] by way and batch
    size; NaN where every answer is of one token. Writes missing rows of the tables "rounds" and "predictions".

    recorded: the text of all prompts. cost_rows: of the table "costs".
    """
    logs, rows, costs = {}, [], Costs.of(cost_rows)
    replayed, lengths = replay(bench, recorded, ways, bench.rows(part)), recorded.trace.lengths + 1
    for way in ways:
        for batch in bench.batches_of(way):
            values = []
            for call in bench.calls(part, batch):
                running = np.arange(1, max(lengths[call]))[:, None] < lengths[call]  # [steps, prompts]
                plain = np.sum(costs.plain(running.sum(1)))
                rounds = [replayed[way.name][row][int(way.at_prompt) :] for row in call]
                speculative = call_seconds(bench, costs, way, rounds)
                values.append(np.log(plain / speculative) if plain and speculative else np.nan)
            logs[way.name, batch] = values = np.array(values)
            values = values[~np.isnan(values)]
            mean = stats.of_logs([values], bench.generator(part, batch, way.name)) if len(values) else stats.Estimate()
            rows.append(dict(backend=bench.backend.name, batch=batch, way=way.name, part=part, drafter=way.method,
                             shape=way.shape_name, nodes=way.nodes, value=mean.value, low=mean.low, high=mean.high,
                             n=len(values)))
    bench.store.open("predictions").add(rows)
    return logs


def call_seconds(bench: Bench, costs: Costs, way: Way, rounds: Sequence[Sizes]) -> float:
    """Seconds, after the prefill, of a call whose prompts have these rounds int64[R, 3]."""
    grid = np.full((len(rounds), max(map(len, rounds)), 3), -1)
    for row, sizes in zip(grid, rounds):
        row[: len(sizes)] = sizes
    running, nodes = grid[..., 0] >= 0, np.maximum(grid[..., 0], 0)
    count, drafts = running.sum(0), (grid[..., 2] > 0).any(0)
    drafts |= way.drafter.traits.reads_text  # which looks for a draft in every step
    widest = nodes.max(0) if bench.backend.padded else nodes.sum(0) / count
    seconds = 0.0
    for rows in np.unique(count):
        steps_of_rows = count == rows
        seconds += float(np.sum(costs.check(int(rows), widest[steps_of_rows])))
        seconds += float(drafts[steps_of_rows].sum()) * costs.draft(way, int(rows))
    return seconds


def expected_tokens(alpha: float, length: int) -> float:
    """Tokens per round of a chain, (1 - alpha^(length + 1)) / (1 - alpha), if each is accepted with chance alpha."""
    return length + 1 if alpha >= 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain: expected tokens per round over length * cost + 1 (Leviathan et al. 2023, thm. 3.8).

    alpha: the chance that a token is accepted, the same everywhere. cost: seconds of a drafter's step over a target's.
    """
    return expected_tokens(alpha, length) / (length * cost + 1)


def theoretical_speedup(alpha: float, length: int, cost: float) -> float:
    """The first weblog's factor as it was published, for comparison: (k + 1) / (1 + (k + 1 - E) c) with k = length, c =
    cost and E the expected tokens per round; c itself where alpha is 1 or more.
    """
    return cost if alpha >= 1 else (length + 1) / (1 + (length + 1 - expected_tokens(alpha, length)) * cost)


def best_length(speedup: Callable[[float, int, float], float], alpha: float, cost: float, longest: int = 19) -> int:
    """The draft length from 1 to `longest` of the highest factor."""
    return max(range(1, longest + 1), key=lambda length: speedup(alpha, length, cost))
