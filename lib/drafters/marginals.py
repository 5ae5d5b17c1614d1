"""Trees from one distribution for each depth ahead, the same for every node of that depth: branches are not told apart.

`by_depth` fills a shape as Medusa does, `best_first` grows the tree of the most likely paths. `MarginalDrafter` is what
drafters of such heads share.
"""

import heapq
from typing import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters import proposals
from lib.drafters.first_levels import levels
from lib.tree import ROOT, Tree
from lib.verify import Draft, Draws

# (logits [B, D, V], roots, shape) -> one draft a row
Fill = Callable[[Tensor, Sequence[int], Tree], list[Draft]]


def by_depth(logits: Tensor, roots: Sequence[int], shape: Tree) -> list[Draft]:
    """The shape, a node of rank r at depth d the r-th best token of logits[:, d - 1] (Cai et al. 2024, section 2.1.2).

    logits [B, D, V]. What the shape has deeper than D stays undrafted.
    """
    tree, _ = levels(shape, logits.shape[1])
    tokens = torch.tensor(roots)[:, None].repeat(1, tree.size)
    if tree.budget:
        count = int(tree.rank.max()) + 1
        best = proposals.top_tokens(logits[:, : tree.max_depth].flatten(0, 1), count).cpu()
        best = best.view(len(roots), tree.max_depth, count)
        tokens[:, 1:] = best[:, torch.tensor(tree.depth[1:] - 1), torch.tensor(tree.rank[1:])]
    return [Draft(tree, row, "top_k") for row in tokens]


def best_first(logits: Tensor, roots: Sequence[int], shape: Tree) -> list[Draft]:
    """The tree of the most likely paths (DDTree, arXiv 2604.12989); a shape gives its number of nodes and their depth.

    logits [B, D, V].
    """
    depth, count = min(shape.max_depth, logits.shape[1]), min(shape.budget, logits.shape[2])
    if not count or not depth:
        return [Draft(Tree([-1]), torch.tensor([root]), "top_k") for root in roots]
    scores = logits[:, :depth].log_softmax(-1)
    tokens = proposals.top_tokens(scores.flatten(0, 1), count).view(len(roots), depth, count)
    best = scores.gather(-1, tokens).double().cpu().numpy()
    drafts = []
    for row, root in enumerate(roots):
        tree = likeliest_paths(best[row], shape.budget)
        place = torch.tensor(tree.depth[1:] - 1), torch.tensor(tree.rank[1:])
        drafts.append(Draft(tree, torch.cat([torch.tensor([root]), tokens[row].cpu()[place]]), "top_k"))
    return drafts


def likeliest_paths(scores: np.ndarray, budget: int) -> Tree:
    """The tree of the `budget` paths of ranks with the highest sums of scores float[D, R], each row non-increasing.

    A heap holds every path that may come next: a path lets in its first child and its next sibling, of which neither
    sums higher. Of equals the one with the earlier parent comes first, then the lower rank.
    """
    parents, ranks, sums, depths = [-1], [0], [0.0], [0]
    heap = [(-scores[0, 0], ROOT, 0)]
    while heap and len(parents) <= budget:
        negative, parent, rank = heapq.heappop(heap)
        node, depth = len(parents), depths[parent] + 1
        parents.append(parent)
        ranks.append(rank)
        sums.append(-negative)
        depths.append(depth)
        if rank + 1 < scores.shape[1]:
            heapq.heappush(heap, (-(sums[parent] + scores[depth - 1, rank + 1]), parent, rank + 1))
        if depth < len(scores):
            heapq.heappush(heap, (-(sums[node] + scores[depth, 0]), node, 0))
    return Tree(parents, ranks)


FILLS: dict[str, Fill] = {"shape": by_depth, "best_first": best_first}


class MarginalDrafter:
    """Keeps roots, and asks its head once a round for one distribution a depth; `fill` (of FILLS) makes trees of them.

    A kind defines `_marginals(depth) -> [B, D, V]`, for up to so many depths, and `_take(nodes, target_outputs)`, which
    keeps what it needs of a round's hidden states.
    """

    wants_hidden_states = True
    cache_bytes = 0

    def __init__(self, target, head, fill: str = "shape"):
        if fill not in FILLS:
            raise ValueError(f"fill is {fill!r}; choose one of {', '.join(FILLS)}")
        self.target, self.head, self.fill, self.calls = target, head, FILLS[fill], 0
        self.output = target.get_output_embeddings()

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the lengths of the prompts int64[T]; their hidden states come with the first `commit`."""
        self.roots: list[int] = []
        self.drafts: list[Draft] = []
        self.lengths = [len(prompt) for prompt in prompts]

    @torch.no_grad()
    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """One forward of the head, then trees of what it says."""
        self.calls += 1
        self.drafts = self.fill(self._marginals(max(1, shape.max_depth)), self.roots, shape)
        return self.drafts

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Takes the hidden states of what was kept: of the whole prompts first, then of each root and its path."""
        hidden = hidden_states(target_outputs)
        first = not self.roots
        kept = [list(range(length)) for length in self.lengths] if first else [[ROOT, *nodes] for nodes in accepted]
        self._take(kept, hidden)
        self.roots = list(bonus)

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
