"""DSpark (arXiv 2607.05147): one forward pass gives logits for every depth, and a small product adds to each node's
what its parent's token changes. So one pass serves chains and static trees, and a tree that grows by any rule over one
distribution per node: parent-conditioned trees (PCTree, arXiv 2608.02123).
"""

from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.drafters.drafter import alone, levels_of
from lib.drafters.filling import Filling, plan
from lib.drafters.growing import Growing, by_node, drafts_of, grow_levels
from lib.drafters.heads.marginals import BlockHead
from lib.drafters.marginals import BlockDrafter
from lib.lab.counters import forward
from lib.lab.processor import one_thread
from lib.trees.growth.candidates import Growth
from lib.trees.growth.registry import at_most
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


TRUSTED = ("probabilities", "confidence")


class DSparkDrafter(BlockDrafter):
    """A block head with a bias from the token before. Nodes of a shape deeper than its block are not drafted.

    trust: by what trees grow: the head's probabilities, or with "confidence" its estimate of how likely the target
    accepts a node's best child, which the other children share the rest of.
    """

    head_kind = "dspark"
    per_depth = False
    option = "trust"

    def __init__(self, target, head: BlockHead, *, trust: str = TRUSTED[0]):
        if trust not in TRUSTED:
            raise ValueError(f"trust is {trust!r}; choose one of {', '.join(TRUSTED)}")
        if trust == TRUSTED[1] and head.confidence is None:
            raise ValueError(f"trust is {trust!r}, but the head has no confidence; leave it out")
        super().__init__(target, head)
        self.trust = trust

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
            states = self._states(wanted.max_depth)
            logits = self.output(states)
            self.drafts = self._fill(wanted, logits, draws) if static else self._grow(wanted, states, logits)
        return self.drafts

    def _fill(self, shape: Tree, logits: Tensor, draws: Draws) -> list[Draft]:
        filling = Filling(shape, self.roots, "top_k", 1.0, output=self.known)
        for depth, nodes in enumerate([(ROOT,), *(level.nodes for level in plan(shape).levels)]):
            filling.grow(nodes, self._after(logits, depth, filling.tokens[:, nodes]), draws)
        return filling.drafts()[0]

    def _grow(self, rule: Growth, states: Tensor, logits: Tensor) -> list[Draft]:
        rows = [Growing(rule, root, 1.0, output=self.known) for root in self.roots]

        def children(levels, tokens: Tensor, depth: int, sees) -> Tensor:
            own = self._after(logits, depth, tokens)
            return own if self.trust == TRUSTED[0] else self._trusted(own, states, depth, tokens)

        roots = torch.tensor(self.roots)[:, None]
        grow_levels(rows, lambda: children(None, roots, 0, None), children)
        return [draft for draft, _ in drafts_of(rows)]

    @one_thread()
    def _after(self, logits: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """The logits [B, k, K] of the children of nodes int64[B, k] at a depth, from the block's [B, D, K]."""
        return logits[:, depth, None] + self.head.bias(tokens.to(logits.device))

    @one_thread()
    def _trusted(self, logits: Tensor, states: Tensor, depth: int, tokens: Tensor) -> Tensor:
        """The logits [B, k, K] with those of the best children moved to where their probability is the confidence."""
        own = states[:, depth, None].expand(-1, tokens.shape[1], -1)
        sure = self.head.sure(own, tokens.to(logits.device)) / self.head.temperatures[depth]
        best = logits.argmax(-1, keepdim=True)
        rest = logits.scatter(-1, best, float("-inf")).logsumexp(-1, keepdim=True)
        return logits.scatter(-1, best, rest + sure[..., None].to(rest.dtype))

    def _ahead(self, hidden: Sequence[Tensor], text: Tensor, start: int, depth: int) -> Iterable[Tensor]:
        for ahead, logits in enumerate(super()._ahead(hidden, text, start, depth)):
            before = text[start + ahead : -1].to(logits.device)
            yield logits[: len(before)] + self.head.bias(before)
