"""How a language model or a head fills a static shape: tokens from distributions, the nodes of each forward pass and
their masks, and the shape while it is filled.

Forward passes and masks depend on the shape and on the lengths of the uncommitted tails alone, and are made once for
them. A row's tail holds the committed tokens that its cache lacks, the root last. Tails are right-aligned, so that
every root has the same slot.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.forward.native import Levels
from lib.forward.reduced import ReducedOutput
from lib.lab.processor import one_thread
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws
from lib.verify.fast import without
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
    # topk promises no order among equals, so rows with a tie are sorted in full.
    tied = (top.values[:, 1:] == top.values[:, :-1]).any(-1)
    best = top.indices[:, :count]
    if tied.any():
        best[tied] = scores[tied].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return best


def rank_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """The rank of tokens int64[S] in scores [S, V]: how many score higher, or as high with a lower index. int64[S]."""
    own = scores.gather(1, tokens[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < tokens[:, None]
    return (scores > own).sum(1) + ((scores == own) & lower).sum(1)


def independent(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` independent samples of probs float[V]: each distinct token as (place of its first draw, token, count)."""
    drawn = [draws.categorical(probs) for _ in range(count)]
    return [(drawn.index(token), token, drawn.count(token)) for token in dict.fromkeys(drawn)]


def distinct(probs: Tensor, count: int, draws: Draws) -> list[tuple[int, int, int]]:
    """`count` samples of probs float[V] without replacement, as (place, token, 1) in draw order, at most V of them.

    Where no mass is left the rest is drawn uniformly from the tokens not yet drawn, as Sequoia's rule supposes.
    """
    tokens: list[int] = []
    left = probs
    for _ in range(min(count, probs.shape[-1])):
        tokens.append(draws.categorical(left))
        left = without(left, tokens)
    return [(place, token, 1) for place, token in enumerate(tokens)]


SAMPLERS = {"iid": independent, "without_replacement": distinct}


def check_proposal(proposal: str, temperature: float) -> None:
    """ValueError for an unknown proposal, or for samples without a temperature above 0."""
    if proposal != "top_k" and proposal not in SAMPLERS:
        raise ValueError(f"proposal is {proposal!r}; choose one of top_k, {', '.join(SAMPLERS)}")
    if proposal != "top_k" and temperature <= 0:
        raise ValueError(f"temperature is {temperature} for proposal {proposal!r}; samples need more than 0")


@dataclass(frozen=True, eq=False)
class Level:
    """One forward pass: the draft nodes of one depth that have children.

    sees: bool[k, internal nodes above + k], which nodes each of them attends to. above: int64[k], places of their
    parents among the root and the nodes forwarded before.
    """

    depth: int
    nodes: tuple[int, ...]
    sees: Tensor
    above: Tensor


@dataclass(frozen=True)
class Plan:
    """Levels in order of depth, from depth 1; `place` maps a forwarded node to its place among all of them, from 0."""

    levels: tuple[Level, ...]
    place: dict[int, int]


@dataclass(frozen=True)
class Children:
    """Where the best tokens of some nodes go: entry `best[i]` of a table [len(nodes), most] goes to slot `slots[i]`."""

    most: int
    slots: Tensor
    best: Tensor


@dataclass(frozen=True, eq=False)
class Tails:
    """The tails of B rows: their width W, depth int64[B, W] and mask bool[W, W] or [B, W, W].

    offsets: int64[B], each root's distance from the end of its cache. visible: bool[B, W], False at padding.
    """

    width: int
    depth: Tensor
    mask: Tensor
    offsets: Tensor
    visible: Tensor


@lru_cache(maxsize=256)
def plan(tree: Tree) -> Plan:
    """The forward passes after that of the root, which goes with the tail; leaves are never forwarded."""
    parents = set(tree.parents[1:].tolist()) - {ROOT}
    levels, place = [], {}
    for depth in range(1, tree.max_depth):
        nodes = [node for node in np.flatnonzero(tree.depth == depth).tolist() if node in parents]
        above = [1 + place.get(int(tree.parents[node]), -1) for node in nodes]
        for node in nodes:
            place[node] = len(place)
        sees = torch.tensor(tree.mask[np.ix_(nodes, list(place))])
        levels.append(Level(depth, tuple(nodes), sees, torch.tensor(above)))
    return Plan(tuple(levels), place)


@lru_cache(maxsize=1024)
def children(tree: Tree, nodes: tuple[int, ...]) -> Children:
    """The slots of these nodes' children, each with its place among the best tokens of its parent."""
    below = [(place, child) for place, node in enumerate(nodes) for child in tree.children(node)]
    most = max(int(tree.rank[child]) for _, child in below) + 1
    best = [place * most + int(tree.rank[child]) for place, child in below]
    return Children(most, torch.tensor([child for _, child in below]), torch.tensor(best))


@lru_cache(maxsize=1024)
def tails(lengths: tuple[int, ...]) -> Tails:
    """The layout of tails of these numbers of tokens, one per row."""
    width, held = max(lengths), torch.tensor(lengths)
    place, padding = torch.arange(width), width - held[:, None]
    visible = place >= padding
    itself = torch.eye(width, dtype=torch.bool)
    mask = itself | torch.ones_like(itself).tril() & visible[:, None]
    return Tails(width, (place - padding).clamp_min(0), _shared(mask), held - 1, visible)


@lru_cache(maxsize=4096)
def planned_block(waiting: Tails, planned: Level) -> tuple[Tensor, Tensor]:
    """Depth and mask of a level of a static shape after such tails, as `block` makes them."""
    return block(waiting, planned.depth, planned.sees.expand(len(waiting.offsets), -1, -1))


def block(waiting: Tails, depth: int, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and mask of a forward pass of k nodes of one depth.

    sees bool[B, k, forwarded + k]: which of the nodes forwarded before and of themselves the nodes attend to. Returns
    depth int64[B, k] from the end of the cache, and the mask over tail, earlier nodes and themselves.
    """
    nodes = sees.shape[1]
    tail = waiting.visible[:, None].expand(-1, nodes, -1)
    return (waiting.offsets[:, None] + depth).expand(-1, nodes), _shared(torch.cat([tail, sees], dim=-1))


def _shared(mask: Tensor) -> Tensor:
    """The mask of a single row without its batch dimension, so that backends need not compare rows."""
    return mask[0] if len(mask) == 1 else mask


@lru_cache(maxsize=1024)
def native_levels(shape: Tree, waiting: Tails) -> Levels:
    """A shape's levels after such tails, its root's first, for a native call that fills them all."""
    return _levels(shape, [planned_block(waiting, level) for level in plan(shape).levels])


@lru_cache(maxsize=1024)
def native_levels_of_heads(shape: Tree) -> Levels:
    """The same for a head, whose cache ends before the root's children."""
    return _levels(shape, [(torch.full((len(level.nodes),), level.depth - 1), level.sees)
                           for level in plan(shape).levels])


def _levels(shape: Tree, blocks: Sequence[tuple[Tensor, Tensor]]) -> Levels:
    """blocks: positions and mask of each level after the root's."""
    def below(nodes: Sequence[int]) -> Tensor:
        return torch.tensor([(place, int(shape.rank[child]), child)
                             for place, node in enumerate(nodes) for child in shape.children(node)])

    root = torch.tensor([ROOT]), below([ROOT]), None, None
    return Levels(shape.size, [root, *((torch.tensor(level.nodes), below(level.nodes), *own)
                                       for level, own in zip(plan(shape).levels, blocks))])


class Filling:
    """B copies of a shape, filled a level at a time; a slot is a node of the shape, which may stay empty.

    With samples a slot stays empty where a sibling before it drew its token, and so do the slots below it. keep_probs:
    whether "top_k" drafts carry the distributions too, which rules do not need. output: the output layer that made the
    logits, where they are those of some tokens alone.
    """

    def __init__(self, shape: Tree, roots: Sequence[int], proposal: str, temperature: float, keep_probs: bool = False,
                 output: ReducedOutput | None = None):
        self.shape, self.proposal, self.temperature, self.output = shape, proposal, temperature, output
        self.keep_probs = keep_probs or proposal != "top_k"
        self.tokens = torch.zeros(len(roots), shape.size, dtype=torch.long)  # [B, m]
        self.tokens[:, ROOT] = torch.tensor(roots)
        self.probs: list[dict[int, Tensor]] = [{} for _ in roots]  # slot -> float[V] that its children came from
        self.counts: list[dict[int, int]] = [{ROOT: 1} for _ in roots]  # filled slot -> times that its token was drawn

    @one_thread()
    def grow(self, slots: Sequence[int], logits: Tensor, draws: Draws) -> None:
        """Gives these slots their children, from logits [B, len(slots), V], or [B, len(slots), K] with an `output`; of
        [B, 1, ..] for all slots.
        """
        if self.keep_probs:
            warped = warp(logits, self.temperature)
            warped = warped if self.output is None else self.output.spread(warped)  # samples are drawn from all of it
            warped = warped.expand(-1, len(slots), -1)
            for row, probs in enumerate(self.probs):
                probs.update((slot, warped[row, index]) for index, slot in enumerate(slots)
                             if self.proposal == "top_k" or slot in self.counts[row])
        if self.proposal == "top_k":
            below = children(self.shape, tuple(slots))
            best = top_tokens(logits.flatten(0, 1), below.most).view(*logits.shape[:2], -1)
            best = best.expand(-1, len(slots), -1).flatten(1)
            best = best if self.output is None else self.output.tokens[best]
            self.tokens[:, below.slots] = best.cpu()[:, below.best]
            return
        for row in range(len(self.tokens)):
            for slot in slots:
                if slot in self.counts[row]:
                    self._sample(row, slot, draws)

    def drafts(self) -> tuple[list[Draft], list[list[int]]]:
        """The drafts, and for each the slot of every node."""
        pairs = [self._draft(row) for row in range(len(self.tokens))]
        return [draft for draft, _ in pairs], [slots for _, slots in pairs]

    def _sample(self, row: int, slot: int, draws: Draws) -> None:
        below = self.shape.children(slot)
        for place, token, count in SAMPLERS[self.proposal](self.probs[row][slot], len(below), draws):
            self.tokens[row, below[place]] = token
            self.counts[row][below[place]] = count

    def _draft(self, row: int) -> tuple[Draft, list[int]]:
        if self.proposal == "top_k":
            slots = list(range(self.shape.size))
            return Draft(self.shape, self.tokens[row], "top_k", self._probs(row, slots)), slots
        slots = sorted(self.counts[row])
        node = {slot: index for index, slot in enumerate(slots)}
        above = [int(self.shape.parents[slot]) for slot in slots[1:]]
        place = [self.shape.children(parent).index(slot) for parent, slot in zip(above, slots[1:])]
        tree = Tree([-1] + [node[parent] for parent in above], [0] + place)  # rank: when a token was first drawn
        counts = torch.tensor([self.counts[row][slot] for slot in slots])
        return Draft(tree, self.tokens[row, slots], self.proposal, self._probs(row, slots), counts), slots

    def _probs(self, row: int, slots: list[int]) -> Tensor | None:
        if not self.probs[row]:
            return None if self.proposal == "top_k" else torch.zeros(len(slots), 1)  # a root alone: nothing was drawn
        like = next(iter(self.probs[row].values()))
        probs = like.new_zeros(len(slots), len(like))
        for index, slot in enumerate(slots):
            if slot in self.probs[row]:
                probs[index] = self.probs[row][slot]
        return probs
