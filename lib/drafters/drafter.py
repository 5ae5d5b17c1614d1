"""The base classes of drafters: `Drafter`, those that read the text alone, and those made of other drafters."""

import math
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters.registry import DRAFTERS, LIVE, Traits, name_of
from lib.drafters.text_index import trie
from lib.trees.growth import Growth
from lib.trees.shapes import chain
from lib.trees.tree import NO_PARENT, ROOT, Tree
from lib.verify.draft import Draft, Draws

ROOT_ALONE = Tree([NO_PARENT])


class Drafter:
    """Proposes a tree of draft tokens for each row of a batch, and learns after each round what the target kept.

    The loop calls `start`, `commit` with the first roots, then `propose` and `commit` in each round; `select` where
    rows have ended. A new drafter has to define `propose` alone; the other methods keep `roots`, each row's last
    committed token. A class that needs something of the pair defines `of(pair, *, ...)`, a class method that makes a
    drafter of it and of options; without it the options are the arguments of the constructor.
    """

    calls: int = 0  # forward passes of its model since it was made
    idle_passes: int = 0  # those of a round in which the drafter drafts nothing
    levels: list[int] | None = None  # forward passes that each row's last draft takes alone; None: those of the batch
    per_row: Sequence[str] = ("roots",)  # its attributes with an entry for each row of the batch
    window: int | None = None  # positions that its model has; None without a limit
    deepest: int | None = None  # levels that it can draft; None without a limit
    knows: int | None = None  # its tokens are below this number, also where it drafts some alone; None: the target's
    wants_hidden_states: bool = False  # whether `commit` reads them
    with_probs: bool = False  # whether chosen children carry its distributions, if it has some; set before `start`

    @classmethod
    def refusal(cls, target) -> str:
        """Why a target cannot have such a drafter; empty where it can."""
        return ""

    @property
    def traits(self) -> Traits:
        """Those of its kind, where they do not depend on its options; a drafter that samples is replayed LIVE."""
        traits = DRAFTERS[name_of(type(self))].traits
        return traits if getattr(self, "proposal", "top_k") == "top_k" else replace(traits, replay=LIVE)

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch of prompts int64[T] and forgets the last; the first `commit` brings each row's first root."""
        self.roots = [int(prompt[-1]) for prompt in prompts]

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """One draft per row, its root the row's last committed token: of a static shape, of which it may draft fewer
        nodes, or of a tree grown by a rule, which drafters without probabilities refuse (see `static`).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define propose")

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Takes each row's accepted nodes, root excluded, and its bonus token, the new root.

        target_outputs: of the target's forward pass of the drafts, in the first call of the right-padded prompts; its
        `hidden_states`, one [B, m, H] per layer. drafts: those that were verified, where they are not the drafter's.
        """
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows of the batch, in this order; the others have ended."""
        for name in self.per_row:
            entries = getattr(self, name)
            setattr(self, name, entries[rows] if isinstance(entries, Tensor) else [entries[row] for row in rows])

    def read_ahead(self, hidden_states: Sequence[Sequence[Tensor]], texts: Sequence[Tensor], starts: Sequence[int],
                   depth: int) -> tuple[Tensor, Tensor]:
        """The drafter's ranks int32[N, L, depth] and probabilities float32[N, L, depth] of the tokens of known texts.

        hidden_states: the target's for each text without its last token, [1, T_i - 1, H] per layer, for a drafter that
        wants them. texts int64[T_i]: prompts and their continuations; starts: the position of the first root in each,
        at least 1. A row has T_i - 1 - starts[i] transitions, L is their largest number, or 1. Entry [i, t, d] is that
        of the token d + 1 places after token starts[i] + t, in a round that starts at this root and follows the text:
        rank 0 for the favourite, of equals the lower token first; -1 and 0 after the end of a row; a rank beyond all
        others for a token that the drafter cannot propose.
        """
        raise ValueError(f"a {type(self).__name__} cannot be recorded in a trace: its drafts depend on more than the "
                         "text and the path; decode with it live")


class NoDrafter(Drafter):
    """Drafts nothing, so that each round is a step of plain decoding."""

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        return [merge(root, ()) for root in self.roots]


class TextDrafter(Drafter):
    """Keeps one text per row, which grows by the kept tokens; all kinds but `MtpDrafter` read nothing else.

    A kind defines `new_text`, an empty text with `extend(tokens)`; and `draft`, or `propose`, unless its text has
    `tokens` and `continuations` as those of `text_index` do.
    """

    new_text, per_row = list, ("texts",)

    def start(self, prompts: Sequence[Tensor]) -> None:
        self.drafts: list[Draft] = []
        self.texts = [self.new_text() for _ in prompts]
        for text, prompt in zip(self.texts, prompts):
            text.extend(prompt.tolist())

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        self.drafts = [self.draft(text, shape) for text in self.texts]
        return self.drafts

    def draft(self, text, shape: Tree | Growth) -> Draft:
        """The continuations of a text's matches, the longest match first, up to the shape's budget and depth: they fill
        a trie, so that agreeing matches share a path. Without a match nothing is drafted.
        """
        return merge(text.tokens[-1], text.continuations(shape.max_depth), shape.budget)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None, drafts=None) -> None:
        for text, tokens in zip(self.texts, added_tokens(drafts or self.drafts, accepted, bonus), strict=True):
            text.extend(tokens)


class Wrapper(Drafter):
    """A drafter made of others, all of which read the kept tokens; `drafter` is the last of them. A kind defines
    `propose`, which keeps as `drafts` those that it gives.
    """

    per_row = ()
    drafter = property(lambda self: self.drafters[-1])
    target = property(attrgetter("drafter.target"))  # of a head, whose hidden states a replay reads
    calls = property(lambda self: sum(drafter.calls for drafter in self.drafters))
    window = property(lambda self: min((drafter.window for drafter in self.drafters if drafter.window), default=None))
    knows = property(lambda self: max((drafter.knows for drafter in self.drafters if drafter.knows), default=None))
    wants_hidden_states = property(lambda self: any(drafter.wants_hidden_states for drafter in self.drafters))

    def __init__(self, *drafters: Drafter):
        self.drafters = drafters

    def start(self, prompts: Sequence[Tensor]) -> None:
        self.drafts: Sequence[Draft] = ()
        for drafter in self.drafters:
            drafter.with_probs = self.with_probs
            drafter.start(prompts)

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None, drafts=None) -> None:
        for drafter in self.drafters:
            drafter.commit(accepted, bonus, target_outputs, drafts or self.drafts or None)

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        for drafter in self.drafters:
            drafter.select(rows)


class FirstBranch(Wrapper):
    """Another drafter, of whose drafts the path of first children is kept, for targets and engines that take chains
    alone. Look-up drafts a tree even for a chain: where fewer tokens than the chain's length follow a match, those
    after other matches fill the remaining nodes. most: levels of a draft.
    """

    traits = property(attrgetter("drafter.traits"))
    levels = property(attrgetter("drafter.levels"))

    def __init__(self, drafter: Drafter, most: float = math.inf):
        super().__init__(drafter)
        self.most = most

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        self.drafts = []
        for draft in self.drafter.propose(first_levels(shape, self.most), draws):
            nodes = favourites(draft.tree)
            self.drafts.append(draft if draft.tree.is_path else draft.part(chain(len(nodes) - 1), nodes))
        return self.drafts


def favourites(tree: Tree) -> list[int]:
    """The path of first children, from the root."""
    nodes = [ROOT]
    while children := tree.children(nodes[-1]):
        nodes.append(children[0])
    return nodes


def added_tokens(drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int]) -> list[list[int]]:
    """For each row the tokens that a round adds to the text: those of its accepted nodes, then its bonus token."""
    return [[*drafts[row].tokens_of(nodes), token] if nodes else [token]
            for row, (nodes, token) in enumerate(zip(accepted, bonus, strict=True))]


def static(shape: Tree | Growth) -> Tree:
    """The shape. ValueError for a growth rule."""
    if isinstance(shape, Growth):
        raise ValueError(f"{shape.name!r} grows trees of a drafter's most likely tokens, of which this one knows no "
                         "probabilities; give a static shape, such as 'kary:2@16'")
    return shape


_tree = lru_cache(maxsize=4096)(Tree)  # one object per shape, so that other caches find it without comparing trees


def merge(root: int, sequences: Iterable[Sequence[int]], budget: int | None = None) -> Draft:
    """The trie of sequences after one root, up to `budget` nodes (see `text_index.trie`)."""
    parents, tokens = trie(root, sequences, budget)
    return Draft(_tree(tuple(parents)), torch.tensor(tokens), "top_k")


def partial_draft(shape: Tree, tokens: Mapping[int, int]) -> Draft:
    """The nodes of a shape that have a token, the parent of each among them."""
    nodes = sorted(tokens)
    return Draft(part_of(shape, tuple(nodes)), torch.tensor([tokens[node] for node in nodes]), "top_k")


def first_levels(shape: Tree | Growth, depth: float) -> Tree | Growth:
    """The shape, or where it is deeper its first levels."""
    if shape.max_depth <= depth:  # as in nearly every round
        return shape
    if isinstance(shape, Growth):
        return shape.at_most(depth)
    return part_of(shape, tuple(np.flatnonzero(shape.depth <= depth).tolist()))


@lru_cache(maxsize=4096)
def part_of(tree: Tree, nodes: tuple[int, ...]) -> Tree:
    """The tree of some nodes in their order, which include the parent of each; one object per part, as in `_tree`."""
    if len(nodes) == tree.size:
        return tree
    index_of = {node: index for index, node in enumerate(nodes)}
    return Tree([NO_PARENT] + [index_of[int(tree.parents[node])] for node in nodes[1:]], tree.rank[list(nodes)])
