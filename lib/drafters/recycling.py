"""Token recycling: the target's earlier candidates after each token, kept in a table (Luo et al. 2024); no model."""

from operator import attrgetter

import torch

from lib.drafters.drafter import UNKNOWN, Drafter, partial_draft, static
from lib.drafters.filling import top_tokens
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class RecyclingDrafter(Drafter):
    """Fills a shape from the adjacency matrix: a token's children are the target's last candidates after that token.

    matrix int64[V, k]: for each token the target's k best next ones when it was last verified, at an accepted node or a
    rejected one, UNKNOWN where it never was. A shape's child of rank r is the candidate of rank r; where there is none
    the node and all below it are left out. The matrix is kept from batch to batch, as in the paper: make a new drafter
    to clear it.

    Rejected nodes change the matrix, so a draft depends on more than the committed tokens, and no trace replays it.
    """

    cache_bytes = property(attrgetter("matrix.nbytes"))

    def __init__(self, vocabulary: int, candidates: int = 8):
        if not 1 <= candidates <= vocabulary:
            raise ValueError(f"candidates is {candidates}; give 1 to {vocabulary}, the vocabulary")
        self.matrix = torch.full((vocabulary, candidates), UNKNOWN)

    @classmethod
    def of(cls, pair, **options) -> "RecyclingDrafter":
        """For the vocabulary of the pair's target."""
        return cls(pair.target.config.get_text_config().vocab_size, **options)

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The nodes of the shape that have a candidate. ValueError where it has more ranks than the matrix."""
        if static(shape).last_rank >= self.matrix.shape[1]:
            raise ValueError(f"the shape has a child of rank {shape.last_rank}, the matrix "
                             f"{self.matrix.shape[1]} candidates; raise candidates or take a narrower tree")
        self.drafts = [self._filled(shape, root) for root in self.roots]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Writes the target's candidates at all verified nodes into the matrix; of equal tokens the last node counts.

        target_outputs.logits float[B, m, V], m at least the tree's size; None writes nothing.
        """
        if target_outputs is not None:
            for draft, logits in zip(self.drafts, target_outputs.logits):
                best = top_tokens(logits[: draft.tree.size, : len(self.matrix)], self.matrix.shape[1]).cpu()
                # Each token once, since assignment by index promises no order among twins.
                last = {token: node for node, token in enumerate(draft.token_list)}
                self.matrix[list(last)] = best[list(last.values())]
        super().commit(accepted, bonus)

    def _filled(self, shape: Tree, root: int) -> Draft:
        tokens = torch.full((shape.size,), UNKNOWN)
        tokens[ROOT] = root
        for depth in range(1, shape.max_depth + 1):
            nodes = torch.tensor(shape.depth == depth).nonzero().flatten()
            above = tokens[torch.tensor(shape.parents)[nodes]]
            candidates = self.matrix[above, torch.tensor(shape.rank)[nodes]]
            tokens[nodes] = torch.where(above == UNKNOWN, UNKNOWN, candidates)
        return partial_draft(shape, tokens.tolist())
