"""Trees from one distribution for each depth ahead, the same for every node of that depth: branches are not told apart.

`MarginalDrafter` is what drafters of such heads share: a shape is filled as Medusa does it, or the tree of the most
likely paths is grown by the rule "ddtree@N" (see `lib.trees.growth.marginals`).
"""

from typing import Sequence

import torch
from torch import Tensor

from lib.drafters import proposals
from lib.drafters.first_levels import levels
from lib.lab.forward_clock import forward
from lib.models.fused import output_layer
from lib.trees.growth.marginals import DDTree
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


def fill(logits: Tensor, roots: Sequence[int], shape: Tree) -> list[Draft]:
    """The shape, a node of rank r at depth d the r-th best token of logits[:, d - 1] (Cai et al. 2024, section 2.1.2).

    logits [B, D, V]. What the shape has deeper than D stays undrafted.
    """
    tree, _ = levels(shape, logits.shape[1])
    if not tree.budget:
        return alone(roots)
    best = proposals.top_tokens(logits[:, : tree.max_depth].flatten(0, 1), tree.last_rank + 1).cpu()
    return [_draft(tree, root, tokens) for root, tokens in zip(roots, best.view(len(roots), tree.max_depth, -1))]


def grow(logits: Tensor, roots: Sequence[int], rule: DDTree) -> list[Draft]:
    """For each row the tree that the rule makes of its distributions logits [B, D, V]."""
    count = min(rule.budget, logits.shape[-1])
    if not count:
        return alone(roots)
    tokens = proposals.top_tokens(logits.flatten(0, 1), count).view(*logits.shape[:2], count)
    probs = logits.double().softmax(-1).gather(-1, tokens).cpu().numpy()
    return [_draft(rule.tree(own), root, best) for root, own, best in zip(roots, probs, tokens.cpu())]


def alone(roots: Sequence[int]) -> list[Draft]:
    """No drafts: each root by itself."""
    return [Draft(Tree([-1]), torch.tensor([root]), "top_k") for root in roots]


def _draft(tree: Tree, root: int, best: Tensor) -> Draft:
    """The tree with tokens from int64[D, R], the best ones of every depth."""
    drafted = best[torch.tensor(tree.depth[1:] - 1), torch.tensor(tree.rank[1:])]
    return Draft(tree, torch.cat([torch.tensor([root]), drafted.long()]), "top_k")


class MarginalDrafter:
    """Keeps roots, and asks its head once a round for one distribution a depth.

    A kind defines `_marginals(depth) -> [B, D, V]`, for up to so many depths, and `_take(nodes, target_outputs)`, which
    keeps what it needs of a round's hidden states. The head's `depth` is D at most.
    """

    wants_hidden_states = True
    cache_bytes = 0

    def __init__(self, target, head):
        self.target, self.head, self.calls = target, head, 0
        self.output = output_layer(target)

    @property
    def name_or_path(self) -> str:
        """The folder of the head, where it came from one."""
        return getattr(self.head, "name_or_path", "")

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the lengths of the prompts int64[T]; their hidden states come with the first `commit`."""
        self.output = output_layer(self.target)  # anew, for a target whose weights have changed
        self.roots: list[int] = []
        self.drafts: list[Draft] = []
        self.lengths = [len(prompt) for prompt in prompts]

    @torch.no_grad()
    def propose(self, shape: Tree | DDTree, draws: Draws) -> list[Draft]:
        """One forward of the head; then the shape filled, or for every row the tree that the rule makes of it.

        Without a budget there is no forward, as where a policy advises against drafting.
        """
        static = isinstance(shape, Tree)
        if not static and not hasattr(shape, "tree"):
            raise ValueError(f"{shape.name!r} grows over one distribution a node, the head gives one a depth; take "
                             "'ddtree@32', or a static shape")
        if not shape.budget:
            self.drafts = alone(self.roots)
            return self.drafts
        self.calls += 1
        with forward():
            logits = self._marginals(shape.max_depth if static else self.head.depth)
        self.drafts = (fill if static else grow)(logits, self.roots, shape)
        return self.drafts

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Takes the hidden states of what was kept: of the whole prompts first, then of each root and its path."""
        hidden = hidden_states(target_outputs)
        first = not self.roots
        kept = [list(range(length)) for length in self.lengths] if first else [[ROOT, *nodes] for nodes in accepted]
        self._take(kept, hidden)
        self.roots = list(bonus)

    def commit_of(self, drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int],
                  target_outputs=None) -> None:
        """As `commit`: what a head takes are the kept nodes' hidden states, whoever drafted them."""
        self.commit(accepted, bonus, target_outputs)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.roots = [self.roots[row] for row in rows]


def hidden_states(target_outputs) -> Sequence[Tensor]:
    """The hidden states that the loop passes on. ValueError where it did not ask for them."""
    found = getattr(target_outputs, "hidden_states", None)
    if found is None:
        raise ValueError("the drafter reads the target's hidden states, but `commit` was given none; let the loop call "
                         "the target with output_hidden_states=True where `drafter.wants_hidden_states`, its prefill "
                         "included")
    return found
