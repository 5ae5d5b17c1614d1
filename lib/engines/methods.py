"""How engines draft, and by replay what they then count: a method is one of an engine's own, a way is a method with a
number of draft tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import ROOT_ALONE, Drafter, FirstBranch
from lib.drafters.registry import make
from lib.replay import acceptance
from lib.replay.simulated import Recorded, rounds, rounds_behind
from lib.trees import named
from lib.trees.growth import Growth
from lib.trees.names import CHAIN, form_of
from lib.trees.shapes import chain
from lib.trees.tree import Tree

PLAIN, FORCED = "plain", "forced"  # methods of every engine: nothing is drafted; drafts of a number, none accepted
LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.text_drafters.LookupDrafter` does
Sizes = np.ndarray  # int64[R, 3]: of each round the draft tokens, the accepted ones, and the drafter's forward passes


def whole(sizes: Sizes, room: np.ndarray, left: np.ndarray) -> Sizes:
    """At the end of an answer drafts are as long as elsewhere, and tokens that are accepted past it count."""
    return sizes


def shortened(sizes: Sizes, room: np.ndarray, left: np.ndarray) -> Sizes:
    """Drafts are one token shorter than the answer has room for."""
    return np.minimum(sizes, np.stack([room, left], axis=1))


def cut(sizes: Sizes, room: np.ndarray, left: np.ndarray) -> Sizes:
    """Drafts are as long as elsewhere while the answer has room for one token, and accepted tokens that fit count."""
    return np.stack([sizes[:, 0] * (room > 0), np.minimum(sizes[:, 1], left)], axis=1)


@dataclass(frozen=True)
class Method:
    """A way to draft that an engine has, for a drafter of this project (its spec, see `drafters.make`).

    name: in settings and tables. weights: of a pair (see `lib.models.load.Pair`) where the engine reads the drafter's;
    ValueError where it cannot. drafter: that drafts the same in replay, of a pair and a number of draft tokens; the one
    of the spec by default. ending: how the engine drafts and counts at the end of an answer, which has room for so many
    draft tokens, and as many left. shape: the name of what it drafts (see `lib.trees.named`) of a number of draft
    tokens, `least` or more. at_prompt: whether it drafts in the forward pass that reads the prompt too, after its last
    token. alone: whether it drafts for one prompt at a time.
    """

    spec: str
    name: str
    weights: Callable[[object], str] = lambda pair: ""
    drafter: Callable[[object, int], Drafter] | None = None
    ending: Callable[[Sizes, np.ndarray, np.ndarray], Sizes] = whole
    shape: Callable[[int], str] = "chain:{}".format
    least: int = 1
    at_prompt: bool = False
    alone: bool = False

    def way(self, pair, tokens: int) -> "Way":
        """The way with this number of draft tokens, for a pair."""
        drafter = self.drafter(pair, tokens) if self.drafter else make(self.spec, pair)
        shape_name = self.shape(tokens)
        name = f"{self.name}:{tokens}" if form_of(shape_name) == CHAIN else f"{self.name}, {shape_name}"
        return Way(name, self.name, named(shape_name), shape_name, drafter, "", self.weights(pair), (), self.ending,
                   self.at_prompt, self.alone)


def chains_of(spec: str) -> Callable[[object, int], Drafter]:
    """`Method.drafter` of a look-up that drafts the first branch of this project's tree."""
    return lambda pair, tokens: FirstBranch(make(spec, pair))


@dataclass(frozen=True)
class Way:
    """A drafter with a tree, or an engine's method with a number of draft tokens.

    name: in tables. method: the drafter's spec (see `drafters.make`), or the engine's name. shape, shape_name: the tree
    or growth rule that it drafts. drafter: the one that drafts the same in replay; None for plain decoding and forced
    drafts. ranked: the name under which a trace has the ranks of the drafter, or of the one behind its look-up.
    weights: the file or folder of the drafter that an engine reads, "" where it reads none; None for this project's
    loop. schedule: draft tokens by batch size (see `vllm.ranges`). ending, at_prompt, alone: as of `Method`.
    """

    name: str
    method: str
    shape: Tree | Growth = ROOT_ALONE
    shape_name: str = "chain:0"
    drafter: Drafter | None = None
    ranked: str = ""
    weights: str | None = None
    schedule: Sequence[Sequence[int]] = ()
    ending: Callable[[Sizes, np.ndarray, np.ndarray], Sizes] = whole
    at_prompt: bool = False
    alone: bool = False

    @property
    def nodes(self) -> int:
        """The most draft tokens per round."""
        return self.shape.budget

    @property
    def is_chain(self) -> bool:
        """Whether it drafts a path of favourites."""
        return isinstance(self.shape, Tree) and self.shape.is_path and not self.shape.rank.any()


PLAIN_WAY = Way(PLAIN, PLAIN)


def forced(nodes: int) -> Way:
    """Forced drafts of up to so many nodes."""
    return Way(FORCED, FORCED, chain(nodes), f"chain:{nodes}")


def rounds_of(way: Way, recorded: Recorded, new_tokens: int) -> list[Sizes]:
    """By prompt the rounds of a way as its backend counts them, by replay of the backend's own plain text, which goes
    on past the answer, so that every round is decided.

    recorded: rounds start before the answer's end. new_tokens: the limit of an answer, which leaves room for so much;
    an earlier end of the text leaves fewer tokens that count.
    """
    trace = recorded.trace
    if way.at_prompt:  # the prompt's last token is the first root
        last = np.array([prompt[-1:].tolist() for prompt in recorded.prompts])
        trace = replace(trace, tokens=np.concatenate([last, trace.tokens], axis=1), lengths=trace.lengths + 1)
        recorded = Recorded(trace, [prompt[:-1] for prompt in recorded.prompts])
    if way.ranked not in trace.ranks or not isinstance(way.shape, Tree):
        walk = rounds(recorded, way.drafter, way.shape)
    elif isinstance(way.drafter, CombinedDrafter):
        walk = rounds_behind(recorded, way.drafter, way.shape, way.ranked)
    else:
        walk = acceptance.rounds_of(trace, way.shape, way.ranked)
    levels = 1 if way.drafter.traits.one_pass else way.shape.max_depth
    passes = getattr(walk, "draft_calls", np.full(len(walk.rows), levels))
    drafted = way.ending(np.stack([walk.drafted, walk.accepted], axis=1),
                         new_tokens - (2 - way.at_prompt) - walk.starts,
                         trace.lengths[walk.rows] - walk.starts - 1)
    sizes = np.column_stack([drafted, passes])
    return [sizes[walk.rows == row] for row in range(len(recorded.prompts))]
