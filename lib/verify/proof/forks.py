"""Randomness that is enumerated instead of drawn: a function is run once for every way in which its draws can fall
out."""

from typing import Callable, Collection, Iterator, TypeVar

from torch import Tensor

from lib.verify.masses import Masses

Result = TypeVar("Result")


def outcomes(function: Callable[["Forks"], Result]) -> Iterator[tuple[float, Result]]:
    """Every result of function(draws) that has a probability above 0, with it; they sum to one.

    The function is run again from its beginning for each, so it must depend on nothing random but its draws.
    """
    waiting: list[list[int]] = [[]]
    while waiting:
        draws = Forks(waiting.pop())
        result = function(draws)
        waiting += draws.other_ways
        yield draws.probability, result


class Forks:
    """Draws that take a given way at their first forks, and note all other ways behind it."""

    def __init__(self, way: list[int]):
        self.way, self.taken = way, 0
        self.probability = 1.0
        self.other_ways: list[list[int]] = []

    def uniform(self) -> "Uniform":
        """A number of which only comparisons are known."""
        return Uniform(self)

    def categorical(
        self, probs: Tensor | Masses, *, without: Collection[int] = (), otherwise: Tensor | None = None
    ) -> "Token":
        """An index as `Draws` has it, decided only when it is looked at. ValueError where nothing can be drawn."""
        weights = {index: weight for index, weight in enumerate(probs.tolist()) if weight > 0 and index not in without}
        if not weights and otherwise is not None:
            return self.categorical(otherwise)
        if not weights:
            raise ValueError("nothing can be drawn where all probabilities are zero")
        return Token(self, weights)

    def fork(self, weights: list[float]) -> int:
        """Which of several ways is taken; their chances are in proportion to weights."""
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        if len(possible) == 1:
            return possible[0]
        if self.taken == len(self.way):
            self.other_ways += [[*self.way, index] for index in possible[1:]]
            self.way = [*self.way, possible[0]]
        index = self.way[self.taken]
        self.taken += 1
        self.probability *= weights[index] / sum(weights)
        return index


class Uniform:
    """A uniform number in [0, 1) that is known to lie in an interval; a comparison inside it forks, and narrows it.

    So a number that is compared twice is one number. Its being equal to what it is compared with has no probability.
    """

    def __init__(self, draws: Forks):
        self.draws, self.low, self.high = draws, 0.0, 1.0

    def __lt__(self, bound) -> bool:
        cut = min(max(float(bound), self.low), self.high)
        below = self.draws.fork([self.high - cut, cut - self.low]) == 1
        self.low, self.high = (self.low, cut) if below else (cut, self.high)
        return below

    __le__ = __lt__

    def __gt__(self, bound) -> bool:
        return not self < bound

    __ge__ = __gt__

    def __bool__(self):
        raise TypeError("a uniform number that is enumerated can only be compared with < and <=")


class Token:
    """An index drawn in proportion to weights: a comparison tells it apart, use as an index decides it.

    What nobody looks at, such as a bonus token, costs no fork: `settle` gives it with its chances.
    """

    def __init__(self, draws: Forks, weights: dict[int, float]):
        self.draws, self.weights = draws, weights

    def __index__(self) -> int:
        index = list(self.weights)[self.draws.fork(list(self.weights.values()))]
        self.weights = {index: 1.0}
        return index

    __int__ = __index__

    def __eq__(self, other) -> bool:
        here = self.weights.get(int(other), 0.0)
        rest = {index: weight for index, weight in self.weights.items() if index != int(other)}
        equal = self.draws.fork([sum(rest.values()), here]) == 1
        self.weights = {int(other): 1.0} if equal else rest
        return equal

    def __hash__(self) -> int:
        return hash(int(self))


def settle(token: "int | Token") -> list[tuple[int, float]]:
    """The indices that a drawn token may be, with their chances given all that was decided."""
    if not isinstance(token, Token):
        return [(int(token), 1.0)]
    total = sum(token.weights.values())
    return [(index, weight / total) for index, weight in token.weights.items()]
