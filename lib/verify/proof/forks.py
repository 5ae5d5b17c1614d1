"""Enumerated randomness: a function runs once for every combination of outcomes of its random draws."""

from typing import Callable, Iterator, TypeVar

from torch import Tensor

Result = TypeVar("Result")


def outcomes(function: Callable[["Forks"], Result]) -> Iterator[tuple[float, Result]]:
    """Every result of function(draws) with its probability, where that is above 0; the probabilities sum to one.

    The function runs from its beginning for each, so its draws must be its only source of randomness.
    """
    waiting: list[list[int]] = [[]]
    while waiting:
        draws = Forks(waiting.pop())
        result = function(draws)
        waiting += draws.other_ways
        yield draws.probability, result


class Forks:
    """Draws that take the given ways at their first forks and the first way at later ones, whose other ways they keep.

    ways: by fork, the index of the way that is taken. other_ways: the beginnings of all runs that were not taken.
    """

    def __init__(self, ways: list[int]):
        self.ways, self.passed = ways, 0  # passed: forks so far
        self.probability = 1.0
        self.other_ways: list[list[int]] = []

    def uniform(self) -> "Uniform":
        """A number that can only be compared."""
        return Uniform(self)

    def categorical(self, probs: Tensor) -> "Token":
        """An index as `Draws` defines it, decided when it is used. ValueError if nothing can be drawn."""
        weights = {index: weight for index, weight in enumerate(probs.tolist()) if weight > 0}
        if not weights:
            raise ValueError("nothing can be drawn where all probabilities are zero")
        return Token(self, weights)

    def fork(self, weights: list[float]) -> int:
        """The index of the way that is taken; the chances of the ways are in proportion to weights."""
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        if len(possible) == 1:
            return possible[0]
        if self.passed == len(self.ways):
            self.other_ways += [[*self.ways, index] for index in possible[1:]]
            self.ways = [*self.ways, possible[0]]
        index = self.ways[self.passed]
        self.passed += 1
        self.probability *= weights[index] / sum(weights)
        return index


class Uniform:
    """A uniform number known to lie in an interval; a comparison with a number inside it forks, and narrows it.

    A number that is compared twice therefore stays one number.
    """

    def __init__(self, draws: Forks):
        self.draws, self.low, self.high = draws, 0.0, 1.0

    def __lt__(self, bound) -> bool:
        cut = min(max(float(bound), self.low), self.high)
        below = self.draws.fork([self.high - cut, cut - self.low]) == 1
        self.low, self.high = (self.low, cut) if below else (cut, self.high)
        return below


class Token:
    """An index drawn in proportion to weights: a comparison decides whether it is equal, use as an index decides it.

    A token that is never used, such as the bonus token, needs no fork: `settle` gives its chances.
    """

    def __init__(self, draws: Forks, weights: dict[int, float]):
        self.draws, self.weights = draws, weights

    def __index__(self) -> int:
        index = list(self.weights)[self.draws.fork(list(self.weights.values()))]
        self.weights = {index: 1.0}
        return index

    __int__ = __index__

    def __eq__(self, other) -> bool:
        chance = self.weights.get(int(other), 0.0)
        others = {index: weight for index, weight in self.weights.items() if index != int(other)}
        equal = self.draws.fork([sum(others.values()), chance]) == 1
        self.weights = {int(other): 1.0} if equal else others
        return equal

    def __hash__(self) -> int:
        return hash(int(self))


def settle(token: "int | Token") -> list[tuple[int, float]]:
    """The possible values of a drawn token, with their chances after the decisions so far."""
    if not isinstance(token, Token):
        return [(int(token), 1.0)]
    total = sum(token.weights.values())
    return [(index, weight / total) for index, weight in token.weights.items()]
