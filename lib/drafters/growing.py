"""Trees while they grow by a rule, one per row of a batch, filled level by level as static shapes are (`filling`)."""

from typing import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.filling import AT_ROOT, Filling, Level, top_tokens
from lib.forward.reduced import ReducedOutput
from lib.lab.processor import one_thread
from lib.trees.growth.candidates import Candidates, Growth, next_level
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
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


class Row:
    """One row's tree: its candidates, their tokens int64[c], and the place of each forwarded one in the cache's block.

    The root is forwarded with the tail; places count after that, with all rows' levels padded to one width.
    """

    def __init__(self, rule: Growth, root: int, temperature: float, keep_probs: bool, output: ReducedOutput | None):
        self.rule, self.temperature, self.keep_probs, self.output = rule, temperature, keep_probs, output
        self.candidates = Candidates.root()
        self.tokens = np.array([root])
        self.place: dict[int, int] = {}
        self.probs: dict[int, Tensor] = {}  # expanded node -> float[V] that its children came from
        self.levels = 0

    @one_thread()
    def grow(self, nodes: np.ndarray, logits: Tensor) -> None:
        """Gives these nodes their best children, from logits [k, V], or [k, K] with an `output`; of [1, ..] for all.

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


class Growing:
    """B trees that grow by a rule, a level at a time, in the steps of `Filling`; other arguments as there.

    one_pass: whether no level is forwarded, so that none needs the places of its nodes.
    """

    def __init__(self, rule: Growth, roots: Sequence[int], temperature: float, keep_probs: bool = False,
                 output: ReducedOutput | None = None, one_pass: bool = False):
        self.rule, self.one_pass, self.depth, self.forwarded = rule, one_pass, 0, 0
        self.rows = [Row(rule, root, temperature, keep_probs, output) for root in roots]

    @property
    def levels(self) -> list[int]:
        """The levels of each row that were grown."""
        return [row.levels for row in self.rows]

    def next_level(self) -> Level | None:
        """The nodes of each row that get children now, the root first; None where no row has any.

        Rows of fewer nodes are padded with nodes that attend to themselves alone.
        """
        nodes = [next_level(self.rule, row.candidates) for row in self.rows]
        widest, depth = max(map(len, nodes)), self.depth
        if not widest or depth == 0:
            return AT_ROOT if widest else None
        if self.one_pass:
            return Level(depth, nodes)
        sees = torch.zeros(len(nodes), widest, self.forwarded + widest, dtype=torch.bool)
        sees[:, :, self.forwarded :] = torch.eye(widest, dtype=torch.bool)
        above = np.zeros((len(nodes), widest), dtype=np.int64)
        for index, (row, own) in enumerate(zip(self.rows, nodes)):
            for place, node in enumerate(own.tolist()):
                row.place[node] = self.forwarded + place
                path = []  # places of the node and its ancestors but the root, which is in the tail
                while node != ROOT:
                    path.append(row.place[node])
                    node = int(row.candidates.parents[node])
                sees[index, place, path] = True
                above[index, place] = 1 + path[1] if len(path) > 1 else 0
        self.forwarded += widest
        return Level(depth, nodes, sees, torch.from_numpy(above))

    def tokens_of(self, level: Level) -> Tensor:
        """int64[B, k]: the tokens of a level's nodes, padded with zeros."""
        return pad_sequence([torch.from_numpy(row.tokens[nodes]) for row, nodes in zip(self.rows, self._nodes(level))],
                            batch_first=True)

    def grow(self, level: Level, logits: Tensor, draws: Draws) -> None:
        """Gives the nodes of a level their children, from logits [B, k, V]; of [B, 1, ..] for all of them."""
        for row, nodes, own in zip(self.rows, self._nodes(level), logits):
            if len(nodes):
                row.grow(nodes, own[: len(nodes)])
        self.depth += 1

    def drafts(self) -> tuple[list[Draft], list[dict[int, int]]]:
        """The draft of each row, and the places of its forwarded nodes."""
        kept = self.rule.keep_all([row.candidates for row in self.rows])
        drafts, places = zip(*(row.draft(nodes) for row, nodes in zip(self.rows, kept)))
        return list(drafts), list(places)

    def _nodes(self, level: Level) -> Sequence[np.ndarray]:
        return [np.array([ROOT])] * len(self.rows) if level is AT_ROOT else level.nodes


def filling_of(shape: Tree | Growth, roots: Sequence[int], proposal: str, temperature: float, keep_probs: bool = False,
               output: ReducedOutput | None = None, one_pass: bool = False, **gives: bool) -> Filling | Growing:
    """A batch of a static shape, or of trees that a rule grows, to be filled; one_pass: as for `Growing`; gives: as for
    `growable`, whose errors it has.
    """
    if isinstance(shape, Tree):
        return Filling(shape, roots, proposal, temperature, keep_probs, output)
    return Growing(growable(shape, proposal, temperature, **gives), roots, temperature, keep_probs, output,
                   one_pass)
