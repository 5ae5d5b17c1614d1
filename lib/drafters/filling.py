"""How a language model or a head fills static shapes and grows trees by a rule, level by level (see `levels`)."""

from typing import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.drafter import part_of
from lib.drafters.levels import Level, plan
from lib.forward.reduced import ReducedOutput
from lib.lab.processor import one_thread
from lib.trees.growth import Candidates, Growth, next_level
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.rules import without
from lib.verify.warping import best_token, warp


def top_tokens(scores: Tensor, count: int) -> Tensor:
    """The best tokens of each row of scores [S, V], int64[S, count]; of equals the one with the lower index first."""
    vocabulary = scores.shape[-1]
    if count > vocabulary:
        raise ValueError(f"the tree has a child of rank {count - 1}, the drafter knows {vocabulary} tokens; "
                         f"give a node at most {vocabulary} children")
    if count == 1:
        return best_token(scores)[:, None]
    top = scores.topk(min(count + 1, vocabulary), dim=-1)
    # topk promises no order among equals, so rows with a tie are sorted, down to the last score that is needed.
    tied = (top.values[:, 1:] == top.values[:, :-1]).any(-1)
    best, least = top.indices[:, :count], top.values[:, count - 1]
    for row in tied.nonzero()[:, 0].tolist():
        candidates = (scores[row] >= least[row]).nonzero()[:, 0]
        best[row] = candidates[scores[row, candidates].sort(descending=True, stable=True).indices[:count]]
    return best


def rank_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """The rank of tokens int64[S] in scores [S, V]: how many score higher, or as high with a lower index. int64[S]."""
    score = scores.gather(1, tokens[:, None])
    higher, as_high = ((scores > score).sum(1, dtype=torch.int32), (scores >= score).sum(1, dtype=torch.int32))
    tied = (as_high > higher + 1).nonzero()[:, 0]
    lower = torch.arange(scores.shape[1], device=scores.device) < tokens[tied, None]
    higher[tied] += ((scores[tied] == score[tied]) & lower).sum(1, dtype=torch.int32)
    return higher.long()


def independent(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` independent samples of probs float[V]: each distinct token as (first draw, token, number of draws)."""
    drawn = [draws.categorical(probs) for _ in range(count)]
    return [(drawn.index(token), token, drawn.count(token)) for token in dict.fromkeys(drawn)]


def distinct(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` samples of probs float[V] without replacement, as (draw, token, 1) in draw order, at most V of them.

    Where no mass is left the rest is drawn uniformly from the tokens not yet drawn, as Sequoia's rule supposes.
    """
    tokens: list[int] = []
    while len(tokens) < min(count, len(probs)):
        tokens.append(draws.categorical(without(probs, tokens)))
    return [(draw, token, 1) for draw, token in enumerate(tokens)]


SAMPLERS = {"iid": independent, "without_replacement": distinct}


def check_proposal(proposal: str, temperature: float) -> None:
    """ValueError for an unknown proposal, or for samples without a temperature above 0."""
    if proposal not in ("top_k", *SAMPLERS):
        raise ValueError(f"proposal is {proposal!r}; choose one of top_k, {', '.join(SAMPLERS)}")
    if proposal != "top_k" and temperature <= 0:
        raise ValueError(f"temperature is {temperature} for proposal {proposal!r}; samples need more than 0")


class Filling:
    """The drafts of B rows while they are filled: copies of a static shape, or trees that grow by a rule.

    A drafter asks for `next_level`, and gives its nodes their children with `grow`, until no level is left. A slot is a
    node of the static shape, or a candidate of a growing tree. With samples a slot of a shape stays empty where a
    sibling before it drew its token, and so do the slots below it; a node's rank is that of its slot.

    keep_probs: whether "top_k" drafts carry the distributions too, for rules that compare. output: the output layer
    that made the logits, where they are those of some tokens alone. one_pass: whether one forward pass gives the logits
    of all levels, so that levels are not forwarded. levels: those of each row that were forwarded or grown.
    ValueError for a growth rule where the drafter samples, or its temperature is 0.
    """

    def __init__(self, shape: Tree | Growth, roots: Sequence[int], proposal: str, temperature: float,
                 keep_probs: bool = False, output: ReducedOutput | None = None, one_pass: bool = False):
        self.shape, self.proposal, self.temperature, self.output = shape, proposal, temperature, output
        self.keep_probs, self.one_pass = keep_probs or proposal != "top_k", one_pass
        self.static = isinstance(shape, Tree)
        self.probs: list[dict[int, Tensor]] = [{} for _ in roots]  # slot -> float[V] that its children came from
        if self.static:
            levels, places = plan(shape)
            self.places, self.levels = [places] * len(roots), [shape.max_depth] * len(roots)
            self._remaining = iter(levels)
            self.tokens = torch.zeros(len(roots), shape.size, dtype=torch.long)  # [B, m]
            self.tokens[:, ROOT] = torch.tensor(roots)
            self.counts = [{ROOT: 1} for _ in roots]  # filled slot -> times that its token was drawn
            return
        if proposal != "top_k" or temperature <= 0:
            raise ValueError(f"{shape.name!r} grows trees of top_k children at a temperature above 0, not of "
                             f"{proposal!r} at {temperature}; give these, or a static shape, such as 'kary:2@16'")
        self.places, self.levels = [{} for _ in roots], [0] * len(roots)
        self.tokens = [torch.tensor([root]) for root in roots]  # int64[c] of each row's candidates
        self.candidates = [Candidates.root() for _ in roots]
        self._paths = [{ROOT: []} for _ in roots]  # candidate -> places of its ancestors but the root, and its own
        self._forwarded = 0  # places in the cache's block, with all rows' levels padded to one width

    def next_level(self) -> Level | None:
        """The nodes that get children now, the root first; None where no row has any.

        Rows of growing trees with fewer nodes are padded with nodes that attend to themselves alone.
        """
        if self.static:
            return next(self._remaining, None)
        nodes = [next_level(self.shape, candidates) for candidates in self.candidates]
        widest, depth, before = max(map(len, nodes)), max(self.levels), self._forwarded
        if not widest or not depth or self.one_pass:
            return Level(depth, nodes) if widest else None
        sees = torch.zeros(len(nodes), widest, before + widest, dtype=torch.bool)
        sees[:, :, before:] = torch.eye(widest, dtype=torch.bool)
        above = torch.zeros(len(nodes), widest, dtype=torch.long)
        for row, (places, paths, candidates) in enumerate(zip(self.places, self._paths, self.candidates)):
            for index, node in enumerate(nodes[row].tolist()):
                parent = int(candidates.parents[node])
                places[node] = before + index
                paths[node] = [*paths[parent], places[node]]
                sees[row, index, paths[node]] = True
                above[row, index] = 1 + places.get(parent, -1)
        self._forwarded += widest
        return Level(depth, nodes, sees, above)

    def tokens_of(self, level: Level) -> Tensor:
        """int64[B, k]: the tokens of a level's nodes, padded with zeros."""
        if self.static:
            return self.tokens[:, level.nodes]
        return pad_sequence([tokens[nodes] for tokens, nodes in zip(self.tokens, level.nodes)], batch_first=True)

    @one_thread()
    def grow(self, level: Level, logits: Tensor, draws: Draws) -> None:
        """Gives the nodes of a level their children, from logits [B, k, V], or [B, k, K] with an `output`; [B, 1, ..]
        is of all of them.
        """
        if not self.static:
            for row, nodes in enumerate(level.nodes):
                if len(nodes):
                    self._grow_row(row, nodes, logits[row, : len(nodes)])
            return
        if self.keep_probs:
            for probs, warped in zip(self.probs, self._distributions(logits, len(level.nodes))):
                probs.update(zip(level.nodes, warped))
        if self.proposal == "top_k":
            nodes, ranks, slots = level.children.unbind(1)
            best = self._names(top_tokens(logits.flatten(0, 1), int(ranks.max()) + 1)).view(*logits.shape[:2], -1)
            self.tokens[:, slots] = best.expand(-1, len(level.nodes), -1).cpu()[:, nodes, ranks]
            return
        for tokens, probs, counts in zip(self.tokens, self.probs, self.counts):
            for slot in filter(counts.__contains__, level.nodes):
                children = self.shape.children(slot)
                for draw, token, count in SAMPLERS[self.proposal](probs[slot], len(children), draws):
                    tokens[children[draw]], counts[children[draw]] = token, count

    def _grow_row(self, row: int, nodes: np.ndarray, logits: Tensor) -> None:
        """Gives candidates of a row their best children, from logits [k, V], or [k, K]; of [1, ..] for all of them.

        Probabilities are those of the whole softmax at the temperature; only the best ones are computed.
        """
        best, scaled = top_tokens(logits, min(self.shape.width, logits.shape[-1])), logits / self.temperature
        log_probs = scaled.gather(-1, best).double() - torch.logsumexp(scaled, dim=-1, keepdim=True).double()
        per_node = len(nodes), best.shape[1]
        probs = np.broadcast_to(log_probs.exp().clamp_max(1.0).cpu().numpy(), per_node)
        tokens = self._names(best).cpu().expand(per_node).flatten()
        if self.keep_probs:
            self.probs[row].update(zip(nodes.tolist(), self._distributions(logits, len(nodes))))
        self.candidates[row] = self.candidates[row].with_children(nodes, probs)
        self.tokens[row] = torch.cat([self.tokens[row], tokens])
        self.levels[row] += 1

    def _names(self, best: Tensor) -> Tensor:
        """The tokens of places in the logits."""
        return best if self.output is None else self.output.tokens[best]

    def _distributions(self, logits: Tensor, nodes: int) -> Tensor:
        """[..., nodes, V]: the distributions over all tokens of logits [..., nodes or 1, V or K]."""
        warped = warp(logits, self.temperature)
        warped = warped if self.output is None else self.output.spread(warped)
        return warped.expand(*warped.shape[:-2], nodes, -1)

    def drafts(self) -> tuple[list[Draft], list[dict[int, int]]]:
        """The drafts, and for each the places of its nodes among those that were forwarded."""
        drafts, places = [], []
        for row, place_of_slot in enumerate(self.places):
            tree, slots, counts, reach = self.shape, [*range(self.shape.budget + 1)], None, None
            if not self.static:
                grown = self.candidates[row].tree(self.shape.keep(self.candidates[row]))
                tree, slots, reach = grown.tree, grown.nodes.tolist(), grown.reach
            elif self.proposal != "top_k":
                slots = sorted(self.counts[row])
                tree, counts = part_of(self.shape, tuple(slots)), torch.tensor([*map(self.counts[row].get, slots)])
            drafts.append(Draft(tree, self.tokens[row][slots], self.proposal, self._probs(row, slots), counts, reach))
            places.append({node: place_of_slot[slot] for node, slot in enumerate(slots) if slot in place_of_slot})
        return drafts, places

    def _probs(self, row: int, slots: Sequence[int]) -> Tensor | None:
        """float[m, V]: the distribution that the children of each of these slots came from; zeros at leaves."""
        probs = self.probs[row]
        if not probs:
            return None if self.proposal == "top_k" else torch.zeros(len(slots), 1)  # a root alone: nothing was drawn
        nothing = torch.zeros_like(probs[ROOT])
        return torch.stack([probs.get(slot, nothing) for slot in slots])
