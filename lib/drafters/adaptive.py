"""Drafters that choose while decoding how deep to draft: by a policy that learns from the rounds of each row, or by the
model's confidence within a round.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Callable, ClassVar, Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import Drafter, Wrapper, levels_of
from lib.drafters.filling import Filling
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.levels import Level
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws

DEEPEST = 64  # levels, where no bound is given
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

    A policy defines begin() -> State, before a row's first round; after(state, outcome) -> State, after a round; and
    depth(state) -> int, the number of levels that a row drafts now (0 for none; the shape may have fewer), or `depths`
    where rows depend on one another. reads_entropy: whether outcomes need it; it takes a pass over the vocabulary.
    """

    reads_entropy: ClassVar[bool] = False

    def depths(self, states: Sequence[State], reach: Sequence[int] | None = None) -> list[int]:
        """The number of levels that each row of a batch drafts now.

        reach: levels of each row's draft, once they are known; look-up may find nothing for some rows.
        """
        return [self.depth(state) for state in states]


def even_costs(level: float, once: float = 0.0, most: int = 16) -> tuple[float, ...]:
    """Costs of rounds of 0 to `most` levels in rounds of plain decoding: `level` for each, `once` for any draft."""
    return 1.0, *(1 + once + levels * level for levels in range(1, most + 1))


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
        """The first number of levels."""
        return self.first

    def after(self, state: int, outcome: Outcome) -> int:
        """More levels after a draft that was accepted whole, fewer after another."""
        if outcome.accepted < outcome.drafted:
            return max(1, state - self.down)
        return state + self.up if outcome.drafted >= state else state

    def depth(self, state: int) -> int:
        """The state itself."""
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
            expected = tokens_of_chains(self.acceptance(state), ends)
            tokens.append(expected + expected[-1:] * (most - ends))
        speeds = [sum(of_rows) / cost for *of_rows, cost in zip(*tokens, self.costs)]
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


@dataclass(frozen=True)
class Bounded(Policy):
    """Another policy's choice, from `least` to `most` levels."""

    policy: Policy
    least: int = 0
    most: int = DEEPEST

    def __post_init__(self):
        if not 0 <= self.least <= self.most:
            raise ValueError(f"least is {self.least} and most {self.most}; give 0 or more, and no less for the second")

    @property
    def reads_entropy(self) -> bool:
        """As the policy."""
        return self.policy.reads_entropy

    def begin(self) -> State:
        """As the policy."""
        return self.policy.begin()

    def after(self, state: State, outcome: Outcome) -> State:
        """As the policy."""
        return self.policy.after(state, outcome)

    def depths(self, states: Sequence[State], reach: Sequence[int] | None = None) -> list[int]:
        """The policy's numbers, within the bounds."""
        return [min(self.most, max(self.least, depth)) for depth in self.policy.depths(states, reach)]


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


class AdaptiveDrafter(Wrapper):
    """Drafts the first levels of a shape, as many as the policy chooses (see `POLICIES`).

    The inner drafter fills as many levels as the deepest row needs; the other rows' drafts are cut, and all of them
    where too few rows have one. A draft depends on rejected tokens, so no trace replays it. A drafter that reads the
    target's hidden states finds them by node, and so needs shapes in level order, whose first levels are their first
    nodes.
    """

    def __init__(self, drafter: Drafter, policy: Policy):
        self.drafter, self.policy = drafter, policy

    @classmethod
    def of(cls, pair, *, policy: str = "schedule", vocabulary: int | Tensor | None = None, least: int | None = None,
           most: int | None = None) -> "AdaptiveDrafter":
        """The pair's draft model under a policy of `POLICIES`; least, most: bounds of its levels."""
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; choose one of {', '.join(POLICIES)}")
        chosen = POLICIES[policy]()
        if least is not None or most is not None:
            chosen = Bounded(chosen, least or 0, DEEPEST if most is None else most)
        return cls(LanguageModelDrafter.of(pair, vocabulary=vocabulary), chosen)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts the inner drafter on the prompts int64[T], and the policy without a history."""
        self.drafter.start(prompts)
        self.states = [self.policy.begin() for _ in prompts]
        self.cut: list[tuple[Draft, list[int]]] = []  # each draft, and its nodes in the inner drafter's draft

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """For each row the first levels of the shape, which is a static one."""
        if not isinstance(shape, Tree):
            raise ValueError(f"{shape.name!r} decides itself how deep to draft, as the policy does; give a static "
                             "shape, or the rule to the inner drafter")
        depths = self.policy.depths(self.states)
        tree, _ = levels_of(shape, max(depths))
        proposed = self.drafter.propose(tree, draws)
        reach = [draft.tree.max_depth for draft in proposed]
        if any(ends < depth for ends, depth in zip(reach, depths, strict=True)):  # else its choice stays
            depths = self.policy.depths(self.states, reach)
        self.cut = [first_levels(draft, depth) for draft, depth in zip(proposed, depths, strict=True)]
        if self.wants_hidden_states and any(kept != list(range(len(kept))) for _, kept in self.cut):
            raise ValueError(f"the shape {shape} is not in level order, and the drafter finds hidden states by node; "
                             "give the shape's nodes level by level")
        return [draft for draft, _ in self.cut]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Passes the kept nodes of the inner drafter's own draft to it, and the outcome of the round to the policy."""
        if self.cut:
            for row, (nodes, (draft, _)) in enumerate(zip(accepted, self.cut, strict=True)):
                unknown = target_outputs is None or not self.policy.reads_entropy
                entropy = math.nan if unknown else path_entropy(target_outputs.logits[row], nodes)
                outcome = Outcome(draft.tree.max_depth, len(nodes), entropy)
                self.states[row] = self.policy.after(self.states[row], outcome)
            accepted = [[kept[node] for node in nodes] for nodes, (_, kept) in zip(accepted, self.cut)]
        self.drafter.commit(accepted, bonus, target_outputs)

    def commit_of(self, drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int],
                  target_outputs=None) -> None:
        """ValueError: the policy learns from rounds of its own drafts alone."""
        raise ValueError("a drafter of adaptive length cannot follow rounds of other drafts; combine its inner "
                         "drafter, and adapt the combination")

    def select(self, rows: list[int]) -> None:
        """Keeps these rows and their states."""
        self.drafter.select(rows)
        self.states = [self.states[row] for row in rows]


def path_entropy(logits: Tensor, nodes: Sequence[int]) -> float:
    """Mean entropy in nats of the target's distributions, at temperature 1, at the root and these nodes.

    logits float[m, V].
    """
    chosen = torch.log_softmax(logits[[ROOT, *nodes]].double(), dim=-1)
    return float(-(chosen.exp() * chosen).nan_to_num().sum(-1).mean())


def first_levels(draft: Draft, depth: int) -> tuple[Draft, list[int]]:
    """The draft down to a depth, and for each of its nodes the node of the whole draft."""
    if draft.tree.max_depth <= depth:
        return draft, list(range(draft.tree.size))
    tree, kept = levels_of(draft.tree, depth)
    return draft.part(tree, kept), kept


class UntilUnsure(Filling):
    """A filling in which a row stops after a level without a token of the threshold's probability."""

    def __init__(self, threshold: float, shape: Tree, *about, **more):
        super().__init__(shape, *about, **more)
        self.threshold, self.levels = threshold, [min(1, shape.max_depth) for _ in self.levels]

    def next_level(self) -> Level | None:
        """The next level, while the token of one of its nodes reaches the threshold's probability in some row."""
        level = super().next_level()
        if level is None or level.depth == 0:
            return level
        parents, going = self.shape.parents, False
        for row, (probs, depth) in enumerate(zip(self.probs, self.levels)):
            if depth == level.depth and any(probs[int(parents[node])][self.tokens[row, node]] >= self.threshold
                                            for node in level.nodes):
                self.levels[row], going = depth + 1, True
        return level if going else None

    def drafts(self) -> tuple[list[Draft], list[dict[int, int]]]:
        """The drafts down to the levels at which their rows stopped, and the places of their forwarded nodes."""
        drafts, places = super().drafts()
        cut = [first_levels(draft, depth) for draft, depth in zip(drafts, self.levels)]
        forwarded = {slot: place for slot, place in places[0].items() if self.shape.depth[slot] < max(self.levels)}
        return ([draft for draft, _ in cut],
                [{node: forwarded[slot] for node, slot in enumerate(slots) if slot in forwarded} for _, slots in cut])


class ConfidentDrafter(LanguageModelDrafter):
    """Fills a shape level by level, until the best of a level's tokens has a probability below the threshold, as
    transformers does with assistant_confidence_threshold.

    That level is still proposed, as in transformers, where a chain ends with the first token below the threshold. Each
    row stops on its own; the model runs as long as one row continues. Children are the most likely tokens;
    probabilities are the model's at `temperature`.
    """

    def __init__(self, model, *, threshold: float = 0.4, temperature: float = 1.0):
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability, 0 to 1")
        super().__init__(model, temperature=temperature)
        self.threshold, self.asked_probs = threshold, True

    def ask_probs(self, wanted: bool) -> None:
        """Nothing, since its drafts always carry probabilities."""

    def _filling(self, shape: Tree | Growth) -> UntilUnsure:
        if not isinstance(shape, Tree):
            raise ValueError(f"{shape.name!r} decides itself where a tree ends, as the threshold does; give a static "
                             "shape, or the rule to a drafter of kind 'model'")
        return UntilUnsure(self.threshold, shape, [tail[-1] for tail in self.tails], "top_k", self.temperature,
                           keep_probs=True, output=self.output)
