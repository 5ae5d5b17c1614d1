"""Which drafter for the next request: bandits over measured speed, and the choice by prompt length beside them."""

import math
from dataclasses import dataclass, field
from typing import Callable, Mapping, Protocol, Sequence

import torch


@dataclass(frozen=True)
class Record:
    """What is known of each drafter: how often it was taken, and sum and sum of squares of the speeds measured."""

    counts: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, float] = field(default_factory=dict)
    squares: Mapping[str, float] = field(default_factory=dict)

    def and_one(self, name: str, speed: float) -> "Record":
        """With one more measurement."""
        def plus(values: Mapping, more) -> dict:
            return {**values, name: values.get(name, 0) + more}

        return Record(plus(self.counts, 1), plus(self.sums, speed), plus(self.squares, speed**2))

    def mean(self, name: str) -> float:
        """Mean speed of a drafter that was taken."""
        return self.sums[name] / self.counts[name]

    def spread(self) -> float:
        """Standard deviation within the drafters, over all of them; 0 where none was taken twice."""
        free = sum(self.counts.values()) - len(self.counts)
        within = sum(self.squares[name] - self.sums[name] ** 2 / self.counts[name] for name in self.counts)
        return math.sqrt(max(0.0, within) / free) if free > 0 else 0.0


class Chooser(Protocol):
    """Chooses a drafter for a request from what is known; the prompt's length is all it sees of the request."""

    def __call__(self, known: Record, names: Sequence[str], prompt_tokens: int) -> str:
        """One of the names."""


def upper_bound(width: float = 1.0) -> Chooser:
    """The largest mean speed plus width * spread * sqrt(2 ln t / n) (UCB1, Auer et al. 2002, the spread as its scale).

    Every drafter is taken once first.
    """

    def choose(known: Record, names: Sequence[str], prompt_tokens: int) -> str:
        untried = _untried(known, names)
        if untried:
            return untried[0]
        rounds, scale = sum(known.counts.values()), width * (known.spread() or _gap(known, names))
        return max(names, key=lambda name: known.mean(name) + scale * math.sqrt(2 * math.log(rounds)
                                                                                / known.counts[name]))

    return choose


def thompson(generator: torch.Generator) -> Chooser:
    """The largest of one draw a drafter from Normal(mean, spread^2 / n), its belief about the mean speed (Thompson
    1933). Every drafter is taken once first.
    """

    def choose(known: Record, names: Sequence[str], prompt_tokens: int) -> str:
        untried = _untried(known, names)
        if untried:
            return untried[0]
        scale = known.spread() or _gap(known, names)
        drawn = torch.randn(len(names), generator=generator).tolist()
        return max(zip(names, drawn), key=lambda pair: known.mean(pair[0])
                   + scale * pair[1] / math.sqrt(known.counts[pair[0]]))[0]

    return choose


def by_length(short: str, long: str, tokens: int) -> Chooser:
    """One drafter for prompts of fewer tokens than these, another for longer ones: it learns nothing."""
    return lambda known, names, prompt_tokens: short if prompt_tokens < tokens else long


def serve(requests: Sequence[int], names: Sequence[str], choose: Chooser,
          measure: Callable[[int, str], float]) -> tuple[list[str], Record]:
    """Serves requests one after another: the drafter chosen for each, and what is known at the end.

    requests: tokens of each prompt; measure(index, name): serves one with a drafter and gives its tokens a second.
    """
    known, chosen = Record(), []
    for index, length in enumerate(requests):
        name = choose(known, names, length)
        if name not in names:
            raise ValueError(f"drafter {name!r} was chosen, there are {', '.join(names)}; choose one of them")
        known = known.and_one(name, measure(index, name))
        chosen.append(name)
    return chosen, known


def _untried(known: Record, names: Sequence[str]) -> list[str]:
    return [name for name in names if not known.counts.get(name)]


def _gap(known: Record, names: Sequence[str]) -> float:
    """Between the best mean and the worst: the scale of the speeds as long as no drafter was taken twice."""
    means = [known.mean(name) for name in names]
    return max(means) - min(means)
