"""A drafter whose draft length is chosen for each row and round by a policy that learns from the rounds before."""

import math
from typing import Sequence

import torch
from torch import Tensor

from lib.drafters import first_levels
from lib.drafters.draft_length import Outcome, Policy
from lib.drafters.protocol import Drafter
from lib.drafters.wrapping import Wrapping
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class AdaptiveDrafter(Wrapping):
    """Drafts the first levels of the shape that it is asked for, as many as the policy says (see `lib.drafters.draft_length`).

    The drafter behind it fills as many levels as the row that goes deepest; the other rows' drafts are cut, and all of
    them where too few rows have one. What is drafted depends on what was rejected, so that no trace replays it. A
    drafter that reads the target's hidden states finds them by node, and so needs shapes in level order, whose first
    levels are their first nodes.
    """

    def __init__(self, drafter: Drafter, policy: Policy):
        self.drafter, self.policy = drafter, policy

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts the drafter on the prompts int64[T]; no row has a history."""
        self.drafter.start(prompts)
        self.states = [self.policy.begin() for _ in prompts]
        self.drafts: list[tuple[Draft, list[int]]] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """For each row the first levels of the shape, which is a static one."""
        if not isinstance(shape, Tree):
            raise ValueError(f"{shape.name!r} decides itself how deep to draft, as the policy does; give a static "
                             "shape, or the rule to the drafter alone")
        depths = self.policy.depths(self.states)
        tree, _ = first_levels.levels(shape, max(depths))
        proposed = self.drafter.propose(tree, draws)
        reach = [draft.tree.max_depth for draft in proposed]
        if any(ends < depth for ends, depth in zip(reach, depths, strict=True)):  # else nothing has changed
            depths = self.policy.depths(self.states, reach)
        self.drafts = [first_levels.cut(draft, depth) for draft, depth in zip(proposed, depths, strict=True)]
        if self.wants_hidden_states and any(kept != list(range(len(kept))) for _, kept in self.drafts):
            raise ValueError(f"the shape {shape} is not in level order, and the drafter finds hidden states by node; "
                             "give the shape's nodes level by level")
        return [draft for draft, _ in self.drafts]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Tells the drafter what was kept of its own draft, and the policy how the round went."""
        if self.drafts:
            for row, (nodes, (draft, _)) in enumerate(zip(accepted, self.drafts, strict=True)):
                unknown = target_outputs is None or not self.policy.reads_entropy
                entropy = math.nan if unknown else path_entropy(target_outputs.logits[row], nodes)
                outcome = Outcome(draft.tree.max_depth, len(nodes), entropy)
                self.states[row] = self.policy.after(self.states[row], outcome)
            accepted = [[kept[node] for node in nodes] for nodes, (_, kept) in zip(accepted, self.drafts)]
        self.drafter.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.drafter.select(rows)
        self.states = [self.states[row] for row in rows]


def path_entropy(logits: Tensor, nodes: Sequence[int]) -> float:
    """Mean entropy in nats of the target's distributions, at temperature 1, at the root and these nodes.

    logits float[m, V].
    """
    chosen = torch.log_softmax(logits[[ROOT, *nodes]].double(), dim=-1)
    return float(-(chosen.exp() * chosen).nan_to_num().sum(-1).mean())
