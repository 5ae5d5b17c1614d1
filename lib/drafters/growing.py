"""Trees while they grow, one per row of a batch: candidates, their tokens, and the input of the next forward pass."""

from typing import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.filling import top_tokens
from lib.forward.reduced import ReducedOutput
from lib.lab.processor import one_thread
from lib.trees.growth.candidates import Candidates, Growth, next_level
from lib.trees.tree import ROOT
from lib.verify.draft import Draft
from lib.verify.warping import warp


def growable(rule: Growth, proposal: str = "top_k", temperature: float = 1.0, *, per_depth: bool = False,
             per_parent: bool = False) -> Growth:
    """The rule, if a drafter of this proposal can follow it. ValueError where the rule grows over distributions of
    another kind than the drafter's, or where the drafter samples.

    per_depth: whether one pass of the drafter gives a distribution for each depth; per_parent: one for each parent.
    """
    family = rule.name.partition(":")[0]
    if family == "ddtree" and not per_depth:
        raise ValueError(f"{rule.name!r} grows over one distribution per depth, this drafter gives one per node; take "
                         "a rule such as 'dyspec@32', or a drafter with one distribution per depth")
    if family == "pctree" and not per_parent:
        raise ValueError(f"{rule.name!r} grows where one forward pass serves every parent token, as that of 'dspark' "
                         "does, and not for this drafter; take a rule such as 'dyspec@32'")
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
        """Gives these nodes their best children, from logits [k, V], or [k, K] with an `output`; [1, ..] is that of all
        nodes.

        Probabilities are those of the whole softmax at the temperature; only the best ones are computed.
        """
        best, scaled = top_tokens(logits, min(self.rule.width, logits.shape[-1])), logits / self.temperature
        log_probs = scaled.gather(-1, best).double() - torch.logsumexp(scaled, dim=-1, keepdim=True).double()
        probs = log_probs.exp().clamp_max(1.0).cpu().numpy()
        tokens = (best if self.output is None else self.output.tokens[best]).numpy(force=True)
        if self.keep_probs:
            warped = warp(logits, self.temperature)
            warped = warped if self.output is None else self.output.spread(warped)
            self.probs.update(zip(nodes.tolist(), warped.expand(len(nodes), -1)))
        all_nodes = len(nodes), probs.shape[1]
        self.candidates = self.candidates.with_children(nodes, np.broadcast_to(probs, all_nodes))
        self.tokens = np.concatenate([self.tokens, np.broadcast_to(tokens, all_nodes).ravel()])
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
        tokens, probs = torch.tensor(self.tokens[grown.nodes]), self._probs(grown.nodes)
        return Draft(grown.tree, tokens, "top_k", probs, reach=grown.reach), place

    def _probs(self, nodes: np.ndarray) -> Tensor | None:
        if not self.probs:
            return None
        nothing = torch.zeros_like(self.probs[ROOT])
        return torch.stack([self.probs.get(node, nothing) for node in nodes.tolist()])


def grow_levels(rows: Sequence[Growing], children: Callable[[Sequence[np.ndarray], int], Tensor]) -> None:
    """Grows the trees of all rows, one level after the other.

    children(levels, depth): the logits [B, k, V] of the nodes int64[<= k] of each row that get children, all of one
    depth; the root's at depth 0. [B, 1, V] where all of a row's nodes have the same.
    """
    depth = 0
    while any(map(len, levels := [next_level(row.rule, row.candidates) for row in rows])):
        for row, nodes, own in zip(rows, levels, children(levels, depth)):
            if len(nodes):
                row.grow(nodes, own[: len(nodes)])
        depth += 1


def tokens_of(rows: Sequence[Growing], levels: Sequence[np.ndarray]) -> Tensor:
    """The tokens int64[B, k] of each row's nodes, padded with zeros."""
    return pad_sequence([torch.from_numpy(row.tokens[nodes]) for row, nodes in zip(rows, levels)], batch_first=True)


def forwarding(rows: Sequence[Growing], roots: Callable[[], Tensor], forward: Callable[..., Tensor]) -> Callable:
    """The `children` of a model that forwards each level.

    roots(): the logits [B, 1, V] after the roots. forward(levels, tokens, depth, sees): the logits [B, k, V] of a
    level's tokens int64[B, k], where sees bool[B, k, forwarded + k] tells which nodes each attends to.
    """
    forwarded = 0

    def children(levels: Sequence[np.ndarray], depth: int) -> Tensor:
        nonlocal forwarded
        if depth == 0:
            return roots()
        tokens, sees = tokens_of(rows, levels), _place(rows, levels, forwarded)
        forwarded += tokens.shape[1]
        return forward(levels, tokens, depth, sees)

    return children


def _place(rows: Sequence[Growing], levels: Sequence[np.ndarray], pending: int) -> Tensor:
    """Gives each row's nodes of a level their places, from `pending` on; which nodes each attends to, bool[B, k,
    pending + k]. Rows of fewer nodes are padded with nodes that attend to themselves alone.
    """
    widest = max(map(len, levels))
    sees = torch.zeros(len(rows), widest, pending + widest, dtype=torch.bool)
    sees[:, :, pending:] = torch.eye(widest, dtype=torch.bool)
    for index, (row, nodes) in enumerate(zip(rows, levels)):
        row.place.update((node, pending + place) for place, node in enumerate(nodes.tolist()))
        for place, node in enumerate(nodes.tolist()):
            sees[index, place, row.forwarded_above(node)] = True
    return sees


def drafts_of(rows: Sequence[Growing]) -> list[tuple[Draft, dict[int, int]]]:
    """The draft of each row, and the places of its forwarded nodes."""
    kept = rows[0].rule.keep_all([row.candidates for row in rows])
    return [row.draft(nodes) for row, nodes in zip(rows, kept)]
