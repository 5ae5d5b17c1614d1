"""A drafter whose draft length is chosen per row and round by a policy that learns from earlier rounds."""

import math
from typing import Sequence

import torch
from torch import Tensor

from lib.drafters.draft_length import POLICIES, Outcome, Policy
from lib.drafters.drafter import Drafter, Wrapper, first_levels, levels_of
from lib.drafters.language_model import LanguageModelDrafter
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class AdaptiveDrafter(Wrapper):
    """Drafts the first levels of a shape, as many as the policy chooses (see `lib.drafters.draft_length`).

    The inner drafter fills as many levels as the deepest row needs; the other rows' drafts are cut, and all of them
    where too few rows have one. A draft depends on rejected tokens, so no trace replays it. A drafter that reads the
    target's hidden states finds them by node, and so needs shapes in level order, whose first levels are their first
    nodes.
    """

    option = "policy"

    def __init__(self, drafter: Drafter, policy: Policy):
        self.drafter, self.policy = drafter, policy

    @classmethod
    def of(cls, pair, *, policy: str = "schedule", vocabulary: int | Tensor | None = None) -> "AdaptiveDrafter":
        """The pair's draft model under a policy of `draft_length.POLICIES`."""
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; choose one of {', '.join(POLICIES)}")
        return cls(LanguageModelDrafter.of(pair, vocabulary=vocabulary), POLICIES[policy]())

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
        self.drafter.select(rows)
        self.states = [self.states[row] for row in rows]


def path_entropy(logits: Tensor, nodes: Sequence[int]) -> float:
    """Mean entropy in nats of the target's distributions, at temperature 1, at the root and these nodes.

    logits float[m, V].
    """
    chosen = torch.log_softmax(logits[[ROOT, *nodes]].double(), dim=-1)
    return float(-(chosen.exp() * chosen).nan_to_num().sum(-1).mean())
