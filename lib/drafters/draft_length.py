"""Draft length chosen while decoding: small state machines that learn from a row's rounds how deep to draft next."""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Callable, ClassVar, Sequence

FORGOTTEN = 0.3  # with fewer remembered tried tokens the estimate is the prior's
State = Any  # of a row; a policy's own, immutable


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row's round: levels drafted, tokens accepted, and the target's uncertainty along the path.

    entropy: mean nats of the target's distributions at the root and the accepted nodes; nan where it was not measured.
    """

    drafted: int
    accepted: int
    entropy: float = math.nan


class Policy:
    """Pure functions of the rows' states; a state summarises a row's rounds so far.

    A policy defines `begin`, `after` and `depth`, or `depths` where rows depend on one another. reads_entropy: whether
    outcomes need it; it takes a pass over the vocabulary.
    """

    reads_entropy: ClassVar[bool] = False

    def begin(self) -> State:
        """The state before a row's first round."""
        raise NotImplementedError(f"{type(self).__name__} does not define begin")

    def after(self, state: State, outcome: Outcome) -> State:
        """The state after a round."""
        raise NotImplementedError(f"{type(self).__name__} does not define after")

    def depth(self, state: State) -> int:
        """The number of levels that a row drafts now, 0 for none; the shape may have fewer."""
        raise NotImplementedError(f"{type(self).__name__} does not define depth")

    def depths(self, states: Sequence[State], reach: Sequence[int] | None = None) -> list[int]:
        """The number of levels that each row of a batch drafts now.

        reach: levels of each row's draft, once they are known; look-up may find nothing for some rows.
        """
        return [self.depth(state) for state in states]


def even_costs(each: float, once: float = 0.0, most: int = 16) -> tuple[float, ...]:
    """Costs of rounds of 0 to `most` levels in rounds of plain decoding: `each` per level, and `once` for any draft."""
    return 1.0, *(1 + once + levels * each for levels in range(1, most + 1))


@dataclass(frozen=True)
class Schedule(Policy):
    """transformers' "heuristic" schedule: `up` more levels where all were accepted, else `down` fewer; from `first`.

    A draft that was shallower than the state, by its shape or for lack of a match, does not raise it: levels that were
    never drafted would have to be withdrawn one by one when the text changes.
    """

    first: int = 5
    up: int = 2
    down: int = 1

    def begin(self) -> int:
        return self.first

    def after(self, state: int, outcome: Outcome) -> int:
        if outcome.accepted < outcome.drafted:
            return max(1, state - self.down)
        return state + self.up if outcome.drafted >= state else state

    def depth(self, state: int) -> int:
        return state


@dataclass(frozen=True)
class WhereItPays(Policy):
    """The best length for the acceptance of the last rounds, which may be 0.

    The acceptance of a token is estimated as accepted / tried, where the rejected token counts as tried. Each round has
    `memory` times the weight of the next; `prior`, with the weight of `weight` tokens, is the estimate before the
    first.

    All rows of a batch have one length, since a forward pass is as wide as its widest row. costs: those of rounds of 0,
    1, 2, ... levels, in rounds of plain decoding (see `even_costs`). A round without a draft multiplies the weight of
    the earlier ones by `patience`. Where the best length is 0, one token is drafted if for most rows that weight is
    small or their last draft was accepted whole: so drafting is tried again, later with a patience closer to 1.
    """

    memory: float = 0.8
    prior: float = 0.6
    weight: float = 2.0
    costs: tuple[float, ...] = even_costs(0.25)
    patience: float = 0.95

    def begin(self) -> tuple[float, float, bool]:
        """Nothing accepted, nothing tried, and no draft accepted whole."""
        return 0.0, 0.0, False

    def after(self, state: tuple[float, float, bool], outcome: Outcome) -> tuple[float, float, bool]:
        """Adds this round to the earlier ones, whose weight decreases; and whether the whole draft was accepted."""
        accepted, tried, _ = state
        if not outcome.drafted:
            return self.patience * accepted, self.patience * tried, False
        whole = outcome.accepted == outcome.drafted
        return self.memory * accepted + outcome.accepted, self.memory * tried + outcome.accepted + (not whole), whole

    def acceptance(self, state: tuple[float, float, bool]) -> float:
        """The estimate, with the prior."""
        return (state[0] + self.prior * self.weight) / (state[1] + self.weight)

    def depths(self, states: Sequence[tuple[float, float, bool]], reach: Sequence[int] | None = None) -> list[int]:
        """The best length for the estimates, 0 where every length would be slower than plain decoding."""
        most = len(self.costs) - 1
        reach = [most] * len(states) if reach is None else reach
        tokens = []
        for state, ends in zip(states, reach, strict=True):
            own = tokens_of_chains(self.acceptance(state), ends)
            tokens.append(own + own[-1:] * (most - ends))
        speeds = [sum(own) / cost for *own, cost in zip(*tokens, self.costs)]
        length = max(range(len(speeds)), key=speeds.__getitem__)
        curious = sum(ends > 0 and (well or tried < FORGOTTEN) for (_, tried, well), ends in zip(states, reach))
        return [1 if length == 0 and 2 * curious > len(states) else length] * len(states)


@dataclass(frozen=True)
class Complexity(Policy):
    """The best length where the text's complexity, the target's recent entropy H, bounds a token's acceptance.

    Acceptance is taken as 1 - sqrt(scale H), the bound by which Agrawal et al. 2024 (AdaEDL) stop drafting
    within a round, there with the drafter's entropy. Each round's entropy has `memory` times the weight of the next.
    """

    reads_entropy: ClassVar[bool] = True
    cost: float = 0.2
    scale: float = 0.2
    memory: float = 0.8
    most: int = 16

    def begin(self) -> tuple[float, float]:
        """Sum and weight of the entropies so far: none."""
        return 0.0, 0.0

    def after(self, state: tuple[float, float], outcome: Outcome) -> tuple[float, float]:
        """Adds this round to the earlier ones, whose weight decreases; a round of unknown entropy changes nothing."""
        if math.isnan(outcome.entropy):
            return state
        return self.memory * state[0] + outcome.entropy, self.memory * state[1] + 1

    def depth(self, state: tuple[float, float]) -> int:
        """The best length for the bound; before any round, for an entropy of 1 nat."""
        entropy = state[0] / state[1] if state[1] else 1.0
        return best_length(max(0.0, 1 - math.sqrt(self.scale * entropy)), self.cost, self.most)


def best_length(acceptance: float, cost: float, most: int) -> int:
    """The chain's length, 1 to `most`, of the largest expected speedup (Leviathan et al. 2023, theorem 3.8).

    acceptance: of each token, 0 to 1; cost: of drafting one, in forward passes of the target.
    """
    gains = [tokens / (1 + length * cost) for length, tokens in enumerate(tokens_of_chains(acceptance, most))]
    return max(range(1, most + 1), key=gains.__getitem__)


def tokens_of_chains(acceptance: float, most: int) -> list[float]:
    """Expected tokens per round of chains of 0 to `most` tokens, the target's own included (Leviathan et al. 2023,
    eq. 1).
    """
    return list(accumulate(acceptance**depth for depth in range(most + 1)))


POLICIES: dict[str, Callable[..., Policy]] = {
    "schedule": Schedule, "complexity": Complexity, "pays": WhereItPays}
