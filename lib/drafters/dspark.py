"""DSpark (arXiv 2607.05147): one forward pass gives logits for every depth, and a small product adds to each node's what
its parent's token changes. So one pass serves chains and static trees, and a tree that grows by any rule over one
distribution per node: parent-conditioned trees (PCTree, arXiv 2608.02123).
"""

from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import alone, levels_of
from lib.drafters.filling import Filling, plan
from lib.drafters.growing import Growing, by_node, grow_levels
from lib.drafters.marginals import BlockDrafter
from lib.lab.counters import forward
from lib.trees.growth.candidates import Growth
from lib.trees.growth.registry import at_most
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class DSparkDrafter(BlockDrafter):
    """A block head with a bias from the token before. Nodes of a shape deeper than its block are not drafted."""

    head_kind = "dspark"

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the shape filled, or a tree grown by a rule: one forward pass, and one product per level."""
        static = isinstance(shape, Tree)
        wanted = levels_of(shape, self.head.depth)[0] if static else at_most(by_node(shape), self.head.depth)
        if not wanted.budget:
            self.drafts = alone(self.roots)
            return self.drafts
        self.calls += 1
        with forward():
            logits = self._marginals(wanted.max_depth)
            self.drafts = self._fill(wanted, logits, draws) if static else self._grow(wanted, logits)
        return self.drafts

    def _fill(self, shape: Tree, logits: Tensor, draws: Draws) -> list[Draft]:
        filling = Filling(shape, self.roots, "top_k", 1.0, output=self.known)
        for depth, nodes in enumerate([(ROOT,), *(level.nodes for level in plan(shape).levels)]):
            filling.grow(nodes, self._after(logits, depth, filling.tokens[:, nodes]), draws)
        return filling.drafts()[0]

    def _grow(self, rule: Growth, logits: Tensor) -> list[Draft]:
        rows = [Growing(rule, root, 1.0, output=self.known) for root in self.roots]
        roots = torch.tensor(self.roots)[:, None]
        grow_levels(rows, lambda: self._after(logits, 0, roots),
                    lambda _, tokens, depth, sees: self._after(logits, depth, tokens))
        return [row.draft()[0] for row in rows]

    def _after(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """The logits [B, k, K] of the children of nodes int64[B, k] at a depth, from the block's [B, D, K]."""
        return logits[:, depth, None] + self.head.bias(tokens.to(logits.device))

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        for ahead, logits in enumerate(super()._ahead(hidden, text, start, depth)):
            before = text[start + ahead : -1].to(logits.device)
            yield logits[: len(before)] + self.head.bias(before)
