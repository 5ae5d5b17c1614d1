"""What a serving engine should draft with: rounds by replay as it drafts, seconds by its own curve of costs.

The table "engine_costs" holds the curve: for each batch size the seconds of a plain step and of a step that checks
forced drafts, and for each method the seconds that drafting adds. `call_seconds` sums the steps of one call until its
longest answer has ended, so that a prediction includes the steps in which only some prompts still run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib.cost.judging import choose
from lib.cost.round_cost import Curve
from lib.engines.methods import FORCED, PLAIN
from lib.lab import atomic_file

Rounds = Sequence[np.ndarray]  # by prompt: int64[R], the draft tokens of each of its rounds


@dataclass(frozen=True)
class Steps:
    """Seconds of an engine's steps, each by prompts decoded together (batch), linear between those measured.

    plain: without speculation. checks: with speculation on, by draft tokens per prompt; where none without a draft was
    timed, such a step costs a plain one. drafting: for each method the seconds that drafting adds to a step, by draft
    tokens per round.
    """

    plain: Curve
    checks: Mapping[int, Curve]
    drafting: Mapping[str, Mapping[int, Curve]]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Steps":
        """rows: those of the table "engine_costs" of one engine."""
        def by_batch(part: pd.DataFrame) -> dict[int, Curve]:
            """For each batch size the curve over draft tokens."""
            return {int(batch): Curve.through(points["nodes"], points["ms"].clip(lower=0) / 1000)
                    for batch, points in part.groupby("batch")}

        by_method = {name: part for name, part in rows.groupby("method")}
        plain, forced = by_method.pop(PLAIN), by_method.pop(FORCED)
        idle = set(forced.loc[forced["nodes"] == 0, "batch"])
        forced = pd.concat([forced, plain[~plain["batch"].isin(idle)]])
        return cls(Curve.through(plain["batch"], plain["ms"] / 1000), by_batch(forced),
                   {name: by_batch(part) for name, part in by_method.items()})

    def check(self, prompts: int, drafted: int) -> float:
        """Seconds of a step that checks so many draft tokens of so many prompts together."""
        return _between(self.checks, prompts, drafted / prompts)

    def draft(self, method: str, prompts: int, tokens: int) -> float:
        """Seconds that drafting so many tokens for each of so many prompts adds to a step; 0 where none was timed."""
        return _between(self.drafting[method], prompts, tokens) if method in self.drafting else 0.0


def _between(curves: Mapping[int, Curve], batch: int, amount: float) -> float:
    batches = sorted(curves)
    return float(np.interp(batch, batches, [curves[one](amount) for one in batches]))


def call_seconds(rounds: Rounds, steps: Steps, method: str = PLAIN, tokens: int = 0) -> float:
    """Seconds after the prefill of a call that decodes prompts together, each in its rounds.

    method, tokens: as `Steps.draft` takes them; PLAIN without speculation.
    """
    total = 0.0
    for step in range(max(map(len, rounds), default=0)):
        running = [int(sizes[step]) for sizes in rounds if step < len(sizes)]
        if method == PLAIN:
            total += steps.plain(len(running))
        else:
            drafting = steps.draft(method, len(running), tokens) if any(running) else 0.0
            total += steps.check(len(running), sum(running)) + drafting
    return total


def drafting_steps(rounds: Rounds) -> int:
    """Steps of such a call in which a draft is made."""
    return sum(any(step < len(sizes) and sizes[step] for sizes in rounds)
               for step in range(max(map(len, rounds), default=0)))


def together(count: int, batch: int) -> list[list[int]]:
    """The rows of each call: `batch` prompts after one another; the last call is filled with the first prompts."""
    return [[(first + place) % count for place in range(batch)] for first in range(0, count, batch)] if count else []


def speedup(rounds: Rounds, tokens: Sequence[int], steps: Steps, method: str, longest: int, batch: int) -> float:
    """The predicted speed of a way to draft over plain decoding, prefill excluded: the geometric mean over calls of so
    many prompts, as speeds are measured.

    rounds: by prompt, whose answers have so many tokens, of which the prefill gives the first. method, longest: as
    `Steps.draft` takes them.
    """
    calls = together(len(tokens), batch)
    plain = [np.zeros(max(count - 1, 0), dtype=np.int64) for count in tokens]
    logs = [np.log(call_seconds([plain[row] for row in rows], steps))
            - np.log(call_seconds([rounds[row] for row in rows], steps, method, longest)) for rows in calls]
    return float(np.exp(np.mean(logs)))


def recommended(ways: pd.DataFrame) -> str:
    """The way to take, of rows of "engine_ways" of one engine and batch size: of those nearly as fast as the fastest
    the one with the fewest draft tokens, or plain decoding, whose speed is 1.
    """
    return [PLAIN, *ways["way"]][choose([1.0, *ways["predicted"]], [0, *ways["tokens"]])]


def beside(ways: pd.DataFrame, name: str) -> list[str]:
    """The same method's next smaller and next larger way; of plain decoding the two fastest ways."""
    if name == PLAIN:
        return ways.nlargest(2, "predicted")["way"].tolist()
    method = ways.loc[ways["way"] == name, "method"].iloc[0]
    same = ways[ways["method"] == method].sort_values("tokens")["way"].tolist()
    at = same.index(name)
    return [*same[max(at - 1, 0) : at], *same[at + 1 : at + 2]]


def as_costs(rows: pd.DataFrame, path: Path, models: Sequence[str]) -> None:
    """Writes the rows of "engine_costs" of one engine as a table of costs that `served.read_costs` reads, with the mean
    time of a draft model's forward pass where one was timed. models: the methods that draft with one.
    """
    checks = rows[(rows["method"] == PLAIN) | (rows["method"] == FORCED) & (rows["nodes"] > 0)]
    timed = rows[rows["method"].isin(models)]
    passes = (timed["ms"].clip(lower=1e-3) / timed["nodes"]).groupby(timed["batch"]).mean()
    costs = checks.rename(columns={"ms": "check_ms"})[["batch", "nodes", "check_ms"]].sort_values(["batch", "nodes"])
    costs = costs.assign(draft_ms=costs["batch"].map(passes)) if len(passes) else costs
    atomic_file.replace(path, costs.to_csv(index=False).encode())
