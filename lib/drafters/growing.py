"""Trees while they grow, one per row of a batch: candidates, their tokens, and the input of the next forward pass."""

from typing import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters.filling import top_tokens
from lib.lab.processor import one_thread
from lib.models.reduced import ReducedOutput
from lib.trees.growth.candidates import Candidates, Growth, next_level
from lib.trees.growth.rules import DDTree
from lib.trees.tree import ROOT
from lib.verify.draft import Draft
from lib.verify.warping import warp


def by_node(rule: Growth, proposal: str = "top_k", temperature: float = 1.0) -> Growth:
    """The rule, if a drafter of this proposal can follow it: one that gives one distribution per node. ValueError where
    the rule grows over one distribution per depth, or the drafter samples.
    """
    if isinstance(rule, DDTree):
        raise ValueError(f"{rule.name!r} grows over one distribution per depth, this drafter gives one per node; take "
                         "a rule such as 'dyspec@32', or a drafter with heads")
    if proposal != "top_k" or temperature <= 0:
        raise ValueError(f"{rule.name!r} takes the most likely children by probability; the drafter's proposal is "
                         f"{proposal!r}, its temperature {temperature}: make one with 'top_k' and a temperature above "
                         "0, or give a static shape")
    return rule


class Growing:
    """One row's tree: its candidates, their tokens int64[c], and the place of each forwarded one in the cache's block.

    The root is forwarded with the tail; places count after that, with all rows' levels padded to one width. output: as
    for `Filling`.
    """

    def __init__(self, rule: Growth, root: int, temperature: float, keep_probs: bool = False,
                 output: ReducedOutput | None = None):
        self.rule, self.temperature, self.keep_probs, self.output = rule, temperature, keep_probs, output
        self.candidates = Candidates.root()
        self.tokens = np.array([root])
        self.place: dict[int, int] = {}
        self.probs: dict[int, Tensor] = {}  # expanded node -> float[V] that its children came from
        self.levels = 0

    @one_thread()
    def grow(self, nodes: np.ndarray, logits: Tensor) -> None:
        """Gives these nodes their best children, from logits [k, V], or [k, K] with an `output`.

        Probabilities are those of the whole softmax at the temperature; only the best ones are computed.
        """
        best, scaled = top_tokens(logits, min(self.rule.width, logits.shape[-1])), logits / self.temperature
        log_probs = scaled.gather(-1, best).double() - torch.logsumexp(scaled, dim=-1, keepdim=True).double()
        probs = log_probs.exp().clamp_max(1.0).cpu().numpy()
        tokens = (best if self.output is None else self.output.tokens[best]).numpy(force=True)
        if self.keep_probs:
            warped = warp(logits, self.temperature)
            self.probs.update(zip(nodes.tolist(), warped if self.output is None else self.output.spread(warped)))
        self.candidates = self.candidates.with_children(nodes, probs)
        self.tokens = np.concatenate([self.tokens, tokens.ravel()])
        self.levels += 1

    def forwarded_above(self, node: int) -> list[int]:
        """Places of a node's ancestors, the root excluded, and of itself."""
        places = []
        while node != ROOT:
            places.append(self.place[node])
            node = int(self.candidates.parents[node])
        return places

    def draft(self, kept: np.ndarray) -> tuple[Draft, dict[int, int]]:
        """The draft of these candidates, and the place in the cache's block of each of its nodes that was forwarded."""
        grown = self.candidates.tree(kept)
        place = {node: self.place[candidate] for node, candidate in enumerate(grown.nodes.tolist())
                 if candidate in self.place}
        return Draft(grown.tree, torch.tensor(self.tokens[grown.nodes]), "top_k", self._probs(grown.nodes)), place

    def _probs(self, nodes: np.ndarray) -> Tensor | None:
        if not self.probs:
            return None
        nothing = torch.zeros_like(self.probs[ROOT])
        return torch.stack([self.probs.get(node, nothing) for node in nodes.tolist()])


def level_block(rows: Sequence[Growing], levels: Sequence[np.ndarray], pending: int) -> tuple[Tensor, Tensor]:
    """The forward pass of one level of every row: tokens int64[B, k], and which nodes each attends to, bool[B, k,
    pending + k].

    Rows of fewer nodes are padded with nodes that attend to themselves alone. Gives each node its place, from
    `pending` on.
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


def grow_levels(rows: Sequence[Growing], roots: Callable[[], Tensor], forward: Callable[..., Tensor]) -> None:
    """Grows the trees of all rows, one level after the other.

    roots(): the logits [B, 1, V] after the roots. forward(levels, tokens, depth, sees): the logits [B, k, V] of the
    nodes that `levels` holds for each row, as `level_block` gives them.
    """
    depth = forwarded = 0
    while any(map(len, levels := [next_level(row.rule, row.candidates) for row in rows])):
        if depth == 0:
            logits = roots()
        else:
            tokens, sees = level_block(rows, levels, forwarded)
            logits = forward(levels, tokens, depth, sees)
            forwarded += tokens.shape[1]
        for row, nodes, own in zip(rows, levels, logits):
            if len(nodes):
                row.grow(nodes, own[: len(nodes)])
        depth += 1


def drafts_of(rows: Sequence[Growing]) -> list[tuple[Draft, dict[int, int]]]:
    """The draft of each row, and the places of its forwarded nodes."""
    kept = rows[0].rule.keep_all([row.candidates for row in rows])
    return [row.draft(nodes) for row, nodes in zip(rows, kept)]
