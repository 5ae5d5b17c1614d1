"""The base classes of drafters, the drafter that drafts nothing, and drafts from sequences or parts of a shape."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.drafters.text_index import trie
from lib.trees.growth import Growth
from lib.trees.tree import NO_PARENT, Tree
from lib.verify.draft import Draft, Draws

ROOT_ALONE = Tree([NO_PARENT])
UNKNOWN = -1  # in the place of a token that a drafter does not have
BY_RANKS, AGAIN, LIVE = "by ranks", "by drafting again", "live alone"  # see `Traits.replay`


@dataclass(frozen=True)
class Traits:
    """What all drafters of a kind have in common; a row of `registry.DRAFTERS` holds them.

    replay: how a trace of the target's text decides its rounds, if its children are not samples. BY_RANKS: the ranks of
        the text's tokens among its candidates decide any tree; AGAIN: its drafts depend on the text alone; LIVE: they
        depend on more.
    grows: whether trees can grow by its probabilities.
    per_depth: whether it has one distribution for each depth ahead, the same for all nodes of that depth.
    one_pass: whether it drafts all levels in one forward pass, so that deeper trees take no more of them.
    reads_text: whether it drafts from the text alone, so that logs decide its rounds without the target.
    control: whether it only bounds the others, and is made anew for each prompt.
    """

    replay: str = LIVE
    grows: bool = False
    per_depth: bool = False
    one_pass: bool = False
    reads_text: bool = False
    control: bool = False


class Drafter:
    """Proposes a tree of draft tokens for each row of a batch, and learns after each round what the target kept.

    The loop calls `start`, `commit` with the first roots, then `propose` and `commit` in each round; `select` where
    rows have ended. A new drafter has to define `propose` alone, which may draft fewer nodes than the shape has, and
    refuses growth rules by `static(shape)` if it cannot grow. The other methods keep `roots`, each row's last committed
    token. Everything else is a member with a default.

    calls: forward passes of the drafter's model since it was made.
    idle_passes: those that a round takes in which it drafts nothing.
    levels: forward passes that each row's last draft would have taken alone; None where that is the batch's number.
    window: positions that its model has; None without a limit.
    deepest: levels that it can draft; None without a limit.
    knows: size of the vocabulary that it drafts from; None where that is the target's.
    wants_hidden_states: whether `commit` reads `target_outputs.hidden_states`, [B, m, H] per layer of the target for
        the nodes of the verified drafts, and after `start` for the tokens of the prompts, right-padded.
    with_probs: whether its chosen children carry the distributions that they were chosen from (see `ask_probs`).
    name_or_path: the folder that its head or tables were read from; empty without one.
    """

    calls: int = 0
    idle_passes: int = 0
    levels: list[int] | None = None
    window: int | None = None
    deepest: int | None = None
    knows: int | None = None
    wants_hidden_states: bool = False
    with_probs: bool = False
    name_or_path: str = ""

    @classmethod
    def of(cls, pair, **options) -> "Drafter":
        """The drafter for a pair (see `lib.models.load.Pair`). A class that needs something of the pair overrides this,
        with its options as keywords; without an override they are the arguments of the constructor.
        """
        return cls(**options)

    @classmethod
    def refusal(cls, target) -> str:
        """Why a target cannot have such a drafter; empty where it can."""
        return ""

    @property
    def traits(self) -> Traits:
        """Those of its kind, where they do not depend on its options; a drafter that samples is replayed LIVE."""
        from lib.drafters.registry import DRAFTERS, name_of  # which names all classes

        name = name_of(type(self))
        traits = DRAFTERS[name].traits if name else Traits()
        return traits if getattr(self, "proposal", "top_k") == "top_k" else replace(traits, replay=LIVE)

    @property
    def reads_ahead(self) -> bool:
        """Whether `read_ahead` is defined, so that a trace can record the drafter."""
        return type(self).read_ahead is not Drafter.read_ahead

    def ask_probs(self, needed: bool) -> None:
        """Whether drafts of chosen children have to carry the drafter's probabilities, if it has some, for a rule that
        compares with them.
        """
        self.with_probs = needed

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Begins a batch of prompts int64[T] and forgets the last; the first `commit` brings each row's first root."""
        self.roots = [int(prompt[-1]) for prompt in prompts]

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """One draft per row, its root the row's last committed token: a static shape, or a tree grown by a rule."""
        raise NotImplementedError(f"{type(self).__name__} does not define propose")

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Takes each row's accepted nodes, root excluded, and its bonus token, the new root.

        target_outputs: outputs of the target's forward pass of the drafts (of the prompts, in the first call).
        drafts: those that were verified, where they are not the drafter's own ones.
        """
        self.roots = list(bonus)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows of the batch, in this order; the others have ended."""
        self.roots = [self.roots[row] for row in rows]

    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """The drafter's ranks int32[N, L, depth] and probabilities float32[N, L, depth] of the tokens of known texts.

        texts int64[T_i]: prompts and their continuations; starts: the position of the first root in each, at least 1.
        A row has n_i = T_i - 1 - starts[i] transitions, L = max(1, their largest number). Entry [i, t, d] is that of
        the token d + 1 places after root t, token starts[i] + t, among the drafter's candidates in a round that starts
        at this root and follows the text: rank 0 for its favourite, for equals the lower token first; -1 and 0 after
        the end of a row; a rank beyond all others for a token that it cannot propose.
        """
        raise ValueError(f"a {type(self).__name__} cannot be recorded in a trace: its drafts depend on more than the "
                         "text and the path; decode with it live")


class NoDrafter(Drafter):
    """Drafts nothing, so that each round is a step of plain decoding."""

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """The roots alone."""
        return alone(self.roots)


class TextDrafter(Drafter):
    """A drafter that reads nothing but the text: it keeps one text per row, which grows by the kept tokens.

    A kind defines `draft(text, shape) -> Draft`, or `propose`.
    """

    def new_text(self):
        """An empty text, with `extend(tokens)`."""
        return []

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Reads the prompts int64[T]."""
        self.drafts: list[Draft] = []
        self.texts = [self.new_text() for _ in prompts]
        for text, prompt in zip(self.texts, prompts):
            text.extend(prompt.tolist())

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """One draft after each text."""
        self.drafts = [self.draft(text, shape) for text in self.texts]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Appends the kept tokens to the texts."""
        for text, tokens in zip(self.texts, added_tokens(drafts or self.drafts, accepted, bonus), strict=True):
            text.extend(tokens)

    def select(self, rows: list[int]) -> None:
        """Keeps the texts of these rows."""
        self.texts = [self.texts[row] for row in rows]


def alone(roots: Sequence[int]) -> list[Draft]:
    """Drafts without a draft token: each root by itself."""
    return [Draft(ROOT_ALONE, torch.tensor([root]), "top_k") for root in roots]


def added_tokens(drafts: Sequence[Draft], accepted: list[list[int]], bonus: list[int]) -> list[list[int]]:
    """For each row the tokens that a round adds to the text: those of its accepted nodes, then its bonus token."""
    return [[*drafts[row].tokens_of(nodes), token] if nodes else [token]
            for row, (nodes, token) in enumerate(zip(accepted, bonus, strict=True))]


def static(shape: Tree | Growth) -> Tree:
    """The shape. ValueError for a growth rule, for drafters that have no probabilities."""
    if not isinstance(shape, Tree):
        raise ValueError(f"{shape.name!r} grows from probabilities, which this drafter has none of; give a static "
                         "shape, such as 'kary:2@16'")
    return shape


def merge(root: int, sequences: Iterable[Sequence[int]], budget: int | None = None) -> Draft:
    """The trie of sequences after one root, up to `budget` nodes (see `text_index.trie`)."""
    parents, tokens = trie(root, sequences, budget)
    return Draft(_tree(tuple(parents)), torch.tensor(tokens), "top_k")


@lru_cache(maxsize=4096)
def _tree(parents: tuple[int, ...]) -> Tree:
    """One object per shape, so that other caches find it without comparing trees."""
    return Tree(parents)


def partial_draft(shape: Tree, tokens: Sequence[int]) -> Draft:
    """The nodes of a shape that have a token: `tokens`, the root's first, hold UNKNOWN at the others and below them."""
    nodes = [node for node, token in enumerate(tokens) if token != UNKNOWN]
    tree = shape if len(nodes) == len(tokens) else part_of(shape, tuple(nodes))
    return Draft(tree, torch.tensor([tokens[node] for node in nodes]), "top_k")


def levels_of(tree: Tree, depth: int) -> tuple[Tree, list[int]]:
    """The tree down to a depth, and for each of its nodes the node of the whole tree."""
    nodes = np.flatnonzero(tree.depth <= depth).tolist()
    return part_of(tree, tuple(nodes)), nodes


@lru_cache(maxsize=4096)
def part_of(tree: Tree, nodes: tuple[int, ...]) -> Tree:
    """The tree of some nodes in their order, which include the parent of each; one object per part, as in `_tree`."""
    index_of = {node: index for index, node in enumerate(nodes)}
    return Tree([NO_PARENT] + [index_of[int(tree.parents[node])] for node in nodes[1:]], tree.rank[list(nodes)])


def refuse_nan(logits: Tensor, model) -> None:
    """ValueError that names the model where its logits [..., V] after the prompts hold NaN."""
    if bool(logits.isnan().any()):
        name = getattr(model, "name_or_path", "") or type(model).__name__
        raise ValueError(f"model {name!r} gives NaN after the prompt, so its weights hold NaN or overflow in "
                         f"{logits.dtype}; load other weights, or another dtype")
