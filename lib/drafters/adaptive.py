"""A drafter that chooses in each round how many levels to draft, by a policy that learns from each row's rounds."""

from itertools import accumulate
from statistics import fmean
from typing import Any, Sequence

import numpy as np
from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper, added_tokens, first_levels, static
from lib.drafters.language_model import LanguageModelDrafter
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class Policy:
    """How many levels to draft, by a state of each row that summarises its rounds; the prompt is a round too.

    A policy defines `after(state, drafted, accepted, tokens)`, the state after a round of so many levels and accepted
    tokens, in which the text gained these tokens; and `depths(states)`, the levels that each row of a batch drafts now.
    """

    start: Any = None  # the state before any text
    steps: tuple[int, ...] = ()  # by drafter the levels that it is for, where there are several


class History(Policy):
    """One level more where the mean of a row's last 10 acceptance rates is above 0.8, one fewer where it is below 0.5;
    from 4, within 2 to 8. A state is the number of levels, and these rates.
    """

    start = 4, ()

    def after(self, state: tuple, drafted: int, accepted: int, tokens: Sequence[int]) -> tuple:
        if not drafted:
            return state
        depth, rates = state
        rates = (*rates, accepted / drafted)[-10:]
        mean = round(fmean(rates), 9)  # so that four of five each time are not above 0.8
        return min(8, max(2, depth + (mean > 0.8) - (mean < 0.5))), rates

    def depths(self, states: Sequence[tuple]) -> list[int]:
        return [depth for depth, _ in states]


class Complexity(Policy):
    """Fewer levels the more complex a row's text is, and where several draft models are given, a later one of them.

    complexity = 0.6 distinct tokens / length + 0.4 min(length / 1000, 1), or 0.1 for texts of less than ten tokens.
    Below 0.3 drafts have eight levels, below 0.7 five, else three. A state is the text.
    """

    start = ()
    steps = 8, 5, 3

    def after(self, state: tuple, drafted: int, accepted: int, tokens: Sequence[int]) -> tuple:
        return *state, *tokens

    def depths(self, states: Sequence[tuple]) -> list[int]:
        complexities = [0.6 * len(set(text)) / len(text) + 0.4 * min(len(text) / 1000, 1) if len(text) >= 10 else 0.1
                        for text in states]
        return [self.steps[(complexity >= 0.3) + (complexity >= 0.7)] for complexity in complexities]


class WhereItPays(Policy):
    """The best length for the acceptance of the last rounds, which may be 0; all rows of a batch have one length, since
    a forward pass is as wide as its widest row.

    The acceptance of a token is estimated as accepted / tried, the rejected token included, from rounds of which each
    has 0.8 times the weight of the next, and 2 prior tokens at acceptance 0.6. A round without a draft multiplies the
    weight of the earlier ones by 0.95. Where the best length is 0, one token is drafted if for most rows that weight is
    below 0.3 tokens or their last draft was accepted whole. A state is accepted, tried, and whether it was.

    costs: those of rounds of 0, 1, 2, ... levels, in rounds of plain decoding.
    """

    start = 0.0, 0.0, False

    def __init__(self, costs: Sequence[float] = (1.0, *(1 + 0.25 * levels for levels in range(1, 17)))):
        self.costs = costs

    def after(self, state: tuple, drafted: int, accepted: int, tokens: Sequence[int]) -> tuple:
        if not drafted:
            return 0.95 * state[0], 0.95 * state[1], False
        whole = accepted == drafted
        return 0.8 * state[0] + accepted, 0.8 * state[1] + accepted + (not whole), whole

    def acceptance(self, state: tuple) -> float:
        """The estimate of the acceptance of a token."""
        return (state[0] + 0.6 * 2) / (state[1] + 2)

    def depths(self, states: Sequence[tuple]) -> list[int]:
        """The length whose expected tokens (Leviathan et al. 2023, eq. 1) cost least, 0 where plain ones do."""
        powers = [[self.acceptance(state) ** depth for depth in range(len(self.costs))] for state in states]
        speeds = [sum(tokens) / cost for *tokens, cost in zip(*map(accumulate, powers), self.costs)]
        length = speeds.index(max(speeds))
        curious = sum(whole or tried < 0.3 for _, tried, whole in states)
        return [1 if length == 0 and 2 * curious > len(states) else length] * len(states)


POLICIES: dict[str, type[Policy]] = {"history": History, "complexity": Complexity, "pays": WhereItPays}


class AdaptiveDrafter(Wrapper):
    """Drafts the first levels of a static shape, as many as the policy chooses, with the drafter for the row of fewest
    levels; it fills as many as the deepest row needs, and the other rows' drafts are cut.
    """

    per_row = ("states",)

    def __init__(self, *drafters: Drafter, policy: Policy):
        super().__init__(*drafters)
        self.policy = policy

    @classmethod
    def of(cls, pair, *, policy: str = "history") -> "AdaptiveDrafter":
        """The pair's draft model under a policy of `POLICIES`."""
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; choose one of {', '.join(POLICIES)}")
        return cls(LanguageModelDrafter.of(pair), policy=POLICIES[policy]())

    def start(self, prompts: Sequence[Tensor]) -> None:
        super().start(prompts)
        self.states = [self.policy.after(self.policy.start, 0, 0, prompt.tolist()) for prompt in prompts]

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        depths = self.policy.depths(self.states)
        step = self.policy.steps.index(min(depths)) if self.policy.steps else 0
        drafter = self.drafters[min(step, len(self.drafters) - 1)]
        proposed = drafter.propose(first_levels(static(shape), max(depths)), draws)
        self.drafts = [cut(draft, depth) for draft, depth in zip(proposed, depths, strict=True)]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None, drafts=None) -> None:
        """As `Drafter.commit`; the policy learns the acceptance of rounds of the drafter's own drafts alone."""
        super().commit(accepted, bonus, target_outputs, drafts)
        for row, tokens in enumerate(added_tokens(drafts or self.drafts, accepted, bonus)):
            drafted = 0 if drafts or not self.drafts else self.drafts[row].tree.max_depth
            self.states[row] = self.policy.after(self.states[row], drafted, len(accepted[row]), tokens)


def cut(draft: Draft, depth: int) -> Draft:
    """The draft down to a depth."""
    nodes = np.flatnonzero(draft.tree.depth <= depth).tolist()
    return draft.part(first_levels(draft.tree, depth), nodes)
