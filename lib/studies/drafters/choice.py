"""Choosing a drafter for every request: bandits over measured speed and simpler choices, simulated on the speeds of the
table "drafters" in random orders of requests.
"""

import math
from dataclasses import dataclass, field
from typing import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib.studies.drafters.measure import CONTROLS, PLAIN


@dataclass(frozen=True)
class Speeds:
    """The speeds measured so far, by drafter: their number, their sum, and the sum of their squares."""

    counts: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)
    squares: Mapping[str, float] = field(default_factory=dict)

    def plus(self, name: str, speed: float) -> "Speeds":
        """With one more measurement."""
        def add(values: Mapping, more) -> dict:
            return {**values, name: values.get(name, 0) + more}

        return Speeds(add(self.counts, 1), add(self.sums, speed), add(self.squares, speed**2))

    def mean(self, name: str) -> float:
        """Mean speed of a drafter that was measured."""
        return self.sums[name] / self.counts[name]

    def spread(self) -> float:
        """Standard deviation within the drafters, over all of them; 0 where none was measured twice."""
        free = sum(self.counts.values()) - len(self.counts)
        within = sum(self.squares[name] - self.sums[name] ** 2 / self.counts[name] for name in self.counts)
        return math.sqrt(max(0.0, within) / free) if free > 0 else 0.0


# Chooses a drafter for a request: (speeds so far, names of drafters, tokens of the prompt) -> one of the names.
Chooser = Callable[[Speeds, Sequence[str], int], str]


def upper_bound(width: float = 1.0) -> Chooser:
    """The largest mean speed plus width * spread * sqrt(2 ln t / n) (UCB1, Auer et al. 2002, scaled by the spread).

    Every drafter is taken once first.
    """

    def score(speeds: Speeds, name: str, scale: float) -> float:
        return speeds.mean(name) + width * scale * math.sqrt(2 * math.log(sum(speeds.counts.values()))
                                                             / speeds.counts[name])

    return _after_one_each(lambda speeds, names, scale: {name: score(speeds, name, scale) for name in names})


def thompson(generator: torch.Generator) -> Chooser:
    """The largest of one draw per drafter from Normal(mean, spread^2 / n), the belief about its mean speed (Thompson
    1933). Every drafter is taken once first.
    """

    def scores(speeds: Speeds, names: Sequence[str], scale: float) -> dict[str, float]:
        drawn = torch.randn(len(names), generator=generator).tolist()
        return {name: speeds.mean(name) + scale * normal / math.sqrt(speeds.counts[name])
                for name, normal in zip(names, drawn)}

    return _after_one_each(scores)


def by_length(short: str, long: str, tokens: int) -> Chooser:
    """One drafter for prompts of fewer tokens than these, another for longer ones; nothing is learnt."""
    return lambda speeds, names, prompt_tokens: short if prompt_tokens < tokens else long


def _after_one_each(scores: Callable[[Speeds, Sequence[str], float], dict[str, float]]) -> Chooser:
    """The first drafter that was not measured yet, then the one of the largest score.

    scores: (speeds, names, scale of the speeds): their spread, or, as long as no drafter was measured twice, the gap
    between the best mean and the worst.
    """

    def choose(speeds: Speeds, names: Sequence[str], prompt_tokens: int) -> str:
        for name in names:
            if not speeds.counts.get(name):
                return name
        means = [speeds.mean(name) for name in names]
        score = scores(speeds, names, speeds.spread() or max(means) - min(means))
        return max(names, key=score.get)

    return choose


def serve(requests: Sequence[int], names: Sequence[str], choose: Chooser,
          measure: Callable[[int, str], float]) -> tuple[list[str], Speeds]:
    """Serves requests one after another: the drafter chosen for each, and the speeds measured.

    requests: tokens of each prompt; measure(index, name): serves one with a drafter and gives its tokens per second.
    """
    speeds, chosen = Speeds(), []
    for index, length in enumerate(requests):
        name = choose(speeds, names, length)
        if name not in names:
            raise ValueError(f"drafter {name!r} was chosen, there are {', '.join(names)}; choose one of them")
        speeds = speeds.plus(name, measure(index, name))
        chosen.append(name)
    return chosen, speeds


# ----------------------------------------------------------------------------------------------------------- simulation


def speed_table(rows: pd.DataFrame, shape: str) -> pd.DataFrame:
    """Tokens per second of each prompt (row) with each drafter (column) at one shape, plain decoding among them.

    rows: of one target, with `ms`.
    """
    own = rows[rows["shape"].eq(shape) & ~rows["drafter"].isin(CONTROLS) | rows["drafter"].eq(PLAIN)]
    sums = own.groupby(["prompt", "drafter"], sort=False)[["tokens", "ms"]].sum()
    return (1000 * sums["tokens"] / sums["ms"]).unstack("drafter").dropna(axis=0)


def simulate(table: pd.DataFrame, prompt_tokens: pd.Series, *, short: str, long: str, requests: int, orders: int,
             seed: int) -> pd.DataFrame:
    """Every way of choosing over random orders of requests: chooser, order, gain (sum over requests of the speed over
    plain decoding's), requests, and best (requests that got the drafter that is fastest for them).

    table: see `speed_table`; prompt_tokens: by prompt. short, long: the drafters of the choice by prompt length, which
    is left out where the table lacks one of them.
    """
    rng, names, made = np.random.default_rng(seed), list(table), []
    lengths, relative = prompt_tokens[table.index].to_numpy(), table.div(table[PLAIN], axis=0)
    fastest, middle = table.idxmax(axis=1).to_numpy(), float(np.median(lengths))
    fixed = relative.mean().idxmax()
    for order in range(orders):
        drawn = rng.integers(len(table), size=requests)
        choosers = {
            "upper confidence bound": upper_bound(),
            "Thompson sampling": thompson(torch.Generator().manual_seed(seed * orders + order)),
            f"always {fixed}": by_length(fixed, fixed, middle),
        } | ({"by prompt length": by_length(short, long, middle)} if {short, long} <= set(names) else {})
        chosen = {name: serve(lengths[drawn], names, chooser,
                              lambda index, drafter: float(table[drafter].iloc[drawn[index]]))[0]
                  for name, chooser in choosers.items()}
        chosen["in hindsight"] = list(fastest[drawn])
        for name, taken in chosen.items():
            gain = relative.to_numpy()[drawn, [table.columns.get_loc(drafter) for drafter in taken]].sum()
            made.append({"chooser": name, "order": order, "gain": float(gain), "requests": len(drawn),
                         "best": int(sum(drafter == fastest[row] for drafter, row in zip(taken, drawn)))})
    return pd.DataFrame(made)
