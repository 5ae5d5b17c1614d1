"""A drafter that chooses in each round how many levels to draft, by a policy that learns from each row's rounds."""

from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, Sequence

from torch import Tensor

from lib.drafters.drafter import Drafter, added_tokens, levels_of
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.vocabulary import drafting
from lib.drafters.wrapper import Wrapper
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row's round: the levels drafted, the tokens accepted, and the tokens that the text gained."""

    drafted: int
    accepted: int
    tokens: Sequence[int] = ()


class Policy:
    """Pure functions of states, which summarise the rounds of a row; the text before its first round is a round too.

    A policy defines `start`, the state before any text; `after(state, outcome)`, the state after a round; and
    `depths(states, found)`, the number of levels that each row of a batch drafts now, 0 for none. found: levels of each
    row's draft, once they are known; look-up may find nothing for some rows.
    """

    start: Any = None

    def drafter(self, states: Sequence, count: int) -> int:
        """Which of `count` drafters drafts in this round."""
        return 0


class History(Policy):
    """One level more where the mean of a row's last 10 acceptance rates is above 0.8, one fewer where it is below 0.5;
    from 4, within 2 to 8. A state is the number of levels, and these rates.
    """

    start = 4, ()

    def after(self, state: tuple[int, tuple[float, ...]], outcome: Outcome) -> tuple[int, tuple[float, ...]]:
        """Adds the round's rate; a round without a draft has none."""
        if not outcome.drafted:
            return state
        depth, rates = state
        rates = (*rates, outcome.accepted / outcome.drafted)[-10:]
        return min(8, max(2, depth + (fmean(rates) > 0.8) - (fmean(rates) < 0.5))), rates

    def depths(self, states: Sequence[tuple[int, tuple[float, ...]]], found: Sequence[int] | None = None) -> list[int]:
        """Each row's own number."""
        return [depth for depth, _ in states]


class Complexity(Policy):
    """Fewer levels the more complex a row's text is, and where several draft models are given, a later one of them.

    complexity = 0.6 distinct tokens / length + 0.4 min(length / 1000, 1), or 0.1 for texts of less than ten tokens.
    Below 0.3 drafts have eight levels, below 0.7 five, else three. A state is the set of tokens, and the length.
    """

    start = frozenset(), 0

    def after(self, state: tuple[frozenset[int], int], outcome: Outcome) -> tuple[frozenset[int], int]:
        """Adds the round's tokens."""
        return state[0].union(outcome.tokens), state[1] + len(outcome.tokens)

    def step(self, state: tuple[frozenset[int], int]) -> int:
        """0 for simple text, 1 for medium, 2 for complex."""
        distinct, length = len(state[0]), state[1]
        complexity = 0.1 if length < 10 else 0.6 * distinct / length + 0.4 * min(length / 1000, 1)
        return (complexity >= 0.3) + (complexity >= 0.7)

    def depths(self, states: Sequence[tuple[frozenset[int], int]], found: Sequence[int] | None = None) -> list[int]:
        """By each row's own text."""
        return [(8, 5, 3)[self.step(state)] for state in states]

    def drafter(self, states: Sequence[tuple[frozenset[int], int]], count: int) -> int:
        """By the most complex row."""
        return min(count - 1, max(map(self.step, states)))


@dataclass(frozen=True)
class WhereItPays(Policy):
    """The best length for the acceptance of the last rounds, which may be 0; all rows of a batch have one length, since
    a forward pass is as wide as its widest row.

    The acceptance of a token is estimated as accepted / tried, where the rejected token counts as tried. Each round has
    `memory` times the weight of the next; `prior`, with the weight of `weight` tokens, is the estimate before the
    first. A state is accepted, tried, and whether the last draft was accepted whole.

    costs: those of rounds of 0, 1, 2, ... levels, in rounds of plain decoding. A round without a draft multiplies the
    weight of the earlier ones by `patience`. Where the best length is 0, one token is drafted if for most rows that
    weight is below `forgotten` or their last draft was accepted whole: so drafting is tried again, later with a
    patience closer to 1.
    """

    costs: tuple[float, ...] = (1.0, *(1 + 0.25 * levels for levels in range(1, 17)))
    memory: float = 0.8
    prior: float = 0.6
    weight: float = 2.0
    patience: float = 0.95
    forgotten: float = 0.3
    start = 0.0, 0.0, False

    def after(self, state: tuple[float, float, bool], outcome: Outcome) -> tuple[float, float, bool]:
        """Adds this round to the earlier ones, whose weight decreases."""
        accepted, tried, _ = state
        if not outcome.drafted:
            return self.patience * accepted, self.patience * tried, False
        whole = outcome.accepted == outcome.drafted
        return self.memory * accepted + outcome.accepted, self.memory * tried + outcome.accepted + (not whole), whole

    def acceptance(self, state: tuple[float, float, bool]) -> float:
        """The estimate, with the prior."""
        return (state[0] + self.prior * self.weight) / (state[1] + self.weight)

    def depths(self, states: Sequence[tuple[float, float, bool]], found: Sequence[int] | None = None) -> list[int]:
        """The best length for the estimates, 0 where every length would be slower than plain decoding."""
        most = len(self.costs) - 1
        found = [most] * len(states) if found is None else found
        tokens = []  # of each row, by length
        for state, levels in zip(states, found, strict=True):
            expected = tokens_of_chains(self.acceptance(state), levels)
            tokens.append(expected + expected[-1:] * (most - levels))
        speeds = [sum(tokens_of_rows) / cost for *tokens_of_rows, cost in zip(*tokens, self.costs)]
        length = max(range(len(speeds)), key=speeds.__getitem__)
        curious = sum(levels > 0 and (whole or tried < self.forgotten)
                      for (_, tried, whole), levels in zip(states, found))
        return [1 if length == 0 and 2 * curious > len(states) else length] * len(states)


def tokens_of_chains(acceptance: float, most: int) -> list[float]:
    """Expected tokens per round of chains of 0 to `most` tokens, the target's own included (Leviathan et al. 2023,
    eq. 1).
    """
    return list(accumulate(acceptance**depth for depth in range(most + 1)))


POLICIES: dict[str, type[Policy]] = {"history": History, "complexity": Complexity, "pays": WhereItPays}


class AdaptiveDrafter(Wrapper):
    """Drafts the first levels of a shape, as many as the policy chooses, with the drafter that it chooses.

    That drafter fills as many levels as the deepest row needs; the other rows' drafts are cut, and all of them where
    too few rows have one. A draft depends on rejected tokens, so no trace replays it.
    """

    def __init__(self, *drafters: Drafter, policy: Policy):
        super().__init__(*drafters)
        self.policy = policy

    @classmethod
    def of(cls, pair, *, policy: str = "history", models: Sequence = (),
           vocabulary: int | Tensor | None = None) -> "AdaptiveDrafter":
        """The pair's draft model, or these models, under a policy of `POLICIES`; vocabulary: as for
        `LanguageModelDrafter.of`.
        """
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; choose one of {', '.join(POLICIES)}")
        drafters = [LanguageModelDrafter(drafting(model, pair, vocabulary)) for model in models or [pair.draft_model]]
        return cls(*drafters, policy=POLICIES[policy]())

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts all drafters on the prompts int64[T], and the policy."""
        super().start(prompts)
        self.states = [self.policy.after(self.policy.start, Outcome(0, 0, prompt.tolist())) for prompt in prompts]

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """For each row the first levels of the shape, which is a static one."""
        if not isinstance(shape, Tree):
            raise ValueError(f"{shape.name!r} decides itself how deep to draft, as the policy does; give a static "
                             "shape, or the rule to the inner drafter")
        depths = self.policy.depths(self.states)
        chosen = self.drafters[self.policy.drafter(self.states, len(self.drafters))]
        proposed = chosen.propose(levels_of(shape, max(depths))[0], draws)
        found = [draft.tree.max_depth for draft in proposed]
        if any(levels < depth for levels, depth in zip(found, depths, strict=True)):  # else its choice stays
            depths = self.policy.depths(self.states, found)
        self.drafts = [first_levels(draft, depth) for draft, depth in zip(proposed, depths, strict=True)]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """As `Drafter.commit`; the policy learns the acceptance of rounds of the drafter's own drafts alone."""
        super().commit(accepted, bonus, target_outputs, drafts)
        for row, tokens in enumerate(added_tokens(drafts or self.drafts, accepted, bonus)):
            drafted = 0 if drafts or not self.drafts else self.drafts[row].tree.max_depth
            self.states[row] = self.policy.after(self.states[row], Outcome(drafted, len(accepted[row]), tokens))

    def select(self, rows: list[int]) -> None:
        """Keeps these rows and their states."""
        super().select(rows)
        self.states = [self.states[row] for row in rows]


def first_levels(draft: Draft, depth: int) -> Draft:
    """The draft down to a depth."""
    return draft if draft.tree.max_depth <= depth else draft.part(*levels_of(draft.tree, depth))
