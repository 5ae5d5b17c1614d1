"""What a round decides: from the target's logits at every node of every row to accepted paths and bonus tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lib.decoding.hooks import Decision, Hooks
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.rules import verify
from lib.verify.warping import best_token_list, warp


@dataclass(frozen=True)
class Decider:
    """A rule, the warping of the target's distribution, the draws, and a caller's changes of logits and decisions."""

    rule: str
    warping: tuple[float, int | None, float | None]  # temperature, top k, top p
    draws: Draws
    hooks: Hooks

    def first(self, rows: list[int], logits: Tensor) -> list[int]:
        """The first roots of these rows: the target's own next token behind each prompt, logits [B, V]."""
        if self.hooks.adjust:
            logits = torch.cat([self.hooks.adjust(row, [[]], logits[i : i + 1]) for i, row in enumerate(rows)])
        if self.rule == "greedy":
            return best_token_list(logits)
        return [self.draws.categorical(probs) for probs in warp(logits, *self.warping)]

    def round(self, rows: list[int], written: list[list[int]], drafts: list[Draft], logits: Tensor) -> list[Decision]:
        """Of each row its accepted nodes and bonus token, from logits [B, m, V]; written: all rows' generated tokens.

        Greedy verification needs the best tokens alone, which reach the host in one transfer.
        """
        if self.hooks.adjust:
            logits = self._adjusted(rows, written, drafts, logits)
        if self.rule == "greedy":
            decided = [follow(draft, best) for draft, best in zip(drafts, best_token_list(logits))]
        else:
            probs = warp(logits, *self.warping)
            decided = [
                verify(self.rule, draft, probs[i, : draft.tree.size], self.draws) for i, draft in enumerate(drafts)
            ]
        return self.hooks.revise(drafts, decided) if self.hooks.revise else decided

    def _adjusted(self, rows: list[int], written: list[list[int]], drafts: list[Draft], logits: Tensor) -> Tensor:
        adjusted = logits.clone()
        for i, (row, draft) in enumerate(zip(rows, drafts)):
            before, size = written[row], draft.tree.size
            contexts = [before + path for path in paths_below(draft.tree, draft.token_list)]
            adjusted[i, :size] = self.hooks.adjust(row, contexts, logits[i, :size])
        return adjusted


def follow(draft: Draft, best: list[int]) -> Decision:
    """The path on which each node's token is the target's best behind its parent, best[m]; and the best behind its
    end."""
    tokens, node, accepted = draft.token_list, ROOT, []
    children, said = draft.tree.children, best[ROOT]
    while (node := next((child for child in children(node) if tokens[child] == said), None)) is not None:
        accepted.append(node)
        said = best[node]
    return accepted, said


def paths_below(tree: Tree, tokens: list[int]) -> list[list[int]]:
    """For every node the tokens from the root's child to itself; none for the root."""
    paths: list[list[int]] = [[]]
    for node in range(1, tree.size):
        paths.append([*paths[tree.parents[node]], tokens[node]])
    return paths
