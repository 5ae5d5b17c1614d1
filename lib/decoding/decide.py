"""Verification in a loop: from the target's logits at every node of every row to accepted paths and bonus tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lib.decoding.records import Decision, Hooks
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws
from lib.verify.rules import verify
from lib.verify.warping import best_token_list, warp


@dataclass(frozen=True)
class Decider:
    """A rule, the warping of the target's distribution, the draws, and the caller's hooks."""

    rule: str
    warping: tuple[float, int | None, float | None]  # temperature, top k, top p
    draws: Draws
    hooks: Hooks

    def first(self, rows: list[int], logits: Tensor) -> list[int]:
        """The first roots of these rows: the target's next token after each prompt, from logits [B, V]."""
        if self.hooks.adjust:
            logits = torch.cat([self.hooks.adjust(row, [[]], logits[i : i + 1]) for i, row in enumerate(rows)])
        if self.rule == "greedy":
            return best_token_list(logits)
        return [self.draws.categorical(probs) for probs in warp(logits, *self.warping)]

    def round(self, rows: list[int], written: list[list[int]], drafts: list[Draft], logits: Tensor) -> list[Decision]:
        """The accepted nodes and bonus token of each row, from logits [B, m, V]; written: the rows' generated tokens.

        Greedy verification needs only the best token of each node; those of all rows reach the host in one transfer.
        """
        if self.hooks.adjust:
            logits = self._adjusted(rows, written, drafts, logits)
        if self.rule == "greedy":
            return [draft.follow(best.__getitem__) for draft, best in zip(drafts, best_token_list(logits))]
        probs = warp(logits, *self.warping)
        return [verify(self.rule if draft.tree.budget else "naive",  # a root alone is plain decoding for any rule
                       draft, probs[i, : draft.tree.size], self.draws) for i, draft in enumerate(drafts)]

    def _adjusted(self, rows: list[int], written: list[list[int]], drafts: list[Draft], logits: Tensor) -> Tensor:
        adjusted = logits.clone()
        for i, (row, draft) in enumerate(zip(rows, drafts)):
            before, size = written[row], draft.tree.size
            contexts = [before + path for path in paths_below(draft.tree, draft.token_list)]
            adjusted[i, :size] = self.hooks.adjust(row, contexts, logits[i, :size])
        return adjusted


def paths_below(tree: Tree, tokens: list[int]) -> list[list[int]]:
    """For each node, the tokens on its path after the root, its own included."""
    paths: list[list[int]] = [[]]
    for node in range(1, tree.size):
        paths.append([*paths[tree.parents[node]], tokens[node]])
    return paths
