"""Trees while they grow, one a row of a batch: candidates, their tokens, and what the next forward takes."""

from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters import proposals
from lib.trees.growth.candidates import Candidates, Growth, next_level
from lib.trees.tree import ROOT
from lib.verify.draft import Draft
from lib.verify.warping import warp


def best_children(logits: Tensor, width: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """The best tokens of logits [k, V] int64[k, w] and their probabilities float64[k, w]; w = width, at most V.

    Probabilities are of the whole softmax at `temperature`; only the best ones are ever computed.
    """
    tokens = proposals.top_tokens(logits, min(width, logits.shape[-1]))
    scaled = logits / temperature
    log_probs = scaled.gather(-1, tokens).double() - torch.logsumexp(scaled, dim=-1, keepdim=True).double()
    return tokens.cpu().numpy(), log_probs.exp().clamp_max(1.0).cpu().numpy()


def by_node(rule: Growth) -> Growth:
    """The rule, where it grows over one distribution a node, as a language model gives them. ValueError elsewhere."""
    if not hasattr(rule, "expand"):
        raise ValueError(f"{rule.name!r} grows over one distribution a depth, a language model gives one a node; "
                         "take a rule such as 'dyspec@32', or a drafter with heads")
    return rule


class Growing:
    """One row's tree: its candidates, their tokens int64[c], and the place of each forwarded one in the cache's block.

    Only the root is forwarded with what the cache lacks; places count behind that, all rows' levels padded alike.
    """

    def __init__(self, rule: Growth, root: int, temperature: float, keep_probs: bool):
        self.rule, self.temperature, self.keep_probs = rule, temperature, keep_probs
        self.candidates = Candidates.root()
        self.tokens = np.array([root])
        self.place: dict[int, int] = {}
        self.probs: dict[int, Tensor] = {}  # expanded node -> float[V] that its children came from
        self.levels = 0

    def next_level(self) -> np.ndarray:
        """Nodes to forward next, int64[k]; none where the tree has its final form."""
        return next_level(self.rule, self.candidates)

    def grow(self, nodes: np.ndarray, logits: Tensor) -> None:
        """Gives these nodes their best children, from logits [k, V]."""
        tokens, probs = best_children(logits, self.rule.width, self.temperature)
        if self.keep_probs:
            self.probs.update(zip(nodes.tolist(), warp(logits, self.temperature)))
        self.candidates = self.candidates.with_children(nodes, probs)
        self.tokens = np.concatenate([self.tokens, tokens.ravel()])
        self.levels += 1

    def forwarded_above(self, node: int) -> list[int]:
        """Places of a node's ancestors, the root excluded, and of itself."""
        found = []
        while node != ROOT:
            found.append(self.place[node])
            node = int(self.candidates.parents[node])
        return found

    def draft(self) -> tuple[Draft, dict[int, int]]:
        """The draft, and the place in the cache's block of each of its nodes that was forwarded."""
        grown = self.candidates.tree(self.rule.keep(self.candidates))
        place = {node: self.place[candidate] for node, candidate in enumerate(grown.nodes.tolist())
                 if candidate in self.place}
        return Draft(grown.tree, torch.tensor(self.tokens[grown.nodes]), "top_k", self._probs(grown.nodes)), place

    def _probs(self, nodes: np.ndarray) -> Tensor | None:
        if not self.probs:
            return None
        nothing = torch.zeros_like(self.probs[ROOT])
        return torch.stack([self.probs.get(node, nothing) for node in nodes.tolist()])


def level_block(rows: Sequence[Growing], levels: Sequence[np.ndarray], pending: int) -> tuple[Tensor, Tensor]:
    """One forward for a level of every row: tokens int64[B, k] and what each sees, bool[B, k, pending + k].

    Rows of fewer nodes are padded with nodes that see themselves alone. Gives each node its place, from `pending` on.
    """
    widest = max(map(len, levels))
    tokens = torch.zeros(len(rows), widest, dtype=torch.long)
    sees = torch.zeros(len(rows), widest, pending + widest, dtype=torch.bool)
    sees[:, :, pending:] = torch.eye(widest, dtype=torch.bool)
    for index, (row, nodes) in enumerate(zip(rows, levels)):
        row.place.update((node, pending + place) for place, node in enumerate(nodes.tolist()))
        tokens[index, : len(nodes)] = torch.from_numpy(row.tokens[nodes])
        for place, node in enumerate(nodes.tolist()):
            sees[index, place, row.forwarded_above(node)] = True
    return tokens, sees
