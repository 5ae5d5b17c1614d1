"""How engines draft, and by replay what they then count: a method is one of an engine's own, a way is a method with a
number of draft tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lib.drafters.drafter import Drafter, FirstBranch
from lib.drafters.registry import make
from lib.replay.simulated import Recorded, rounds
from lib.trees.growth import Growth
from lib.trees.shapes import chain
from lib.trees.tree import Tree

PLAIN, FORCED = "plain", "forced"  # methods of every engine: nothing is drafted; drafts of a number, none accepted
Sizes = np.ndarray  # int64[R, 2]: of each round the draft tokens and the accepted ones


@dataclass(frozen=True)
class Setting:
    """How an engine drafts: its own name of the method, the number of draft tokens per round, the drafter's weights (a
    folder or file that it reads), and further options by the engine's own names.
    """

    method: str = PLAIN
    tokens: int = 0
    drafter: str = ""
    options: Mapping[str, object] = field(default_factory=dict)


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
    """A way to draft that an engine has, for a kind of drafter (see `lib.drafters.registry`).

    label: its name in tables. setting: of a pair (see `lib.models.load.Pair`), without a number of tokens. replays: of
    a pair the drafter that drafts the same in replay, for a number of draft tokens. ending: how the engine drafts and
    counts at the end of an answer, which has room for so many draft tokens, and as many left. shape: what it drafts of
    a number of draft tokens. at_prompt: whether it drafts in the forward pass that reads the prompt too, after its last
    token. alone: whether it drafts for one prompt at a time.
    """

    kind: str
    label: str
    setting: Callable[[object], Setting]
    replays: Callable[[object, int], Drafter]
    ending: Callable[[Sizes, np.ndarray, np.ndarray], Sizes] = whole
    shape: Callable[[int], Tree | Growth] = chain
    at_prompt: bool = False
    alone: bool = False

    def way(self, pair, tokens: int) -> "Way":
        """The way with this number of draft tokens, for a pair."""
        return Way(replace(self.setting(pair), tokens=tokens), self, self.replays(pair, tokens))


def drafts_as(kind: str) -> Callable[[object, int], Drafter]:
    """`Method.replays` of a method that drafts as this project's drafter of a kind does."""
    return lambda pair, tokens: make(kind, pair)


def chains_as(kind: str) -> Callable[[object, int], Drafter]:
    """The same, of a look-up that may draft a tree for a chain."""
    return lambda pair, tokens: FirstBranch(make(kind, pair))


@dataclass(frozen=True)
class Way:
    """A setting of an engine, with its method and the drafter that drafts the same in replay; None for both of plain
    decoding and of forced drafts.
    """

    setting: Setting
    method: Method | None = None
    drafter: Drafter | None = None

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.method.label if self.method else self.setting.method

    @property
    def name(self) -> str:
        """Label and number of draft tokens, as in "ngram:4"."""
        return f"{self.label}:{self.setting.tokens}" if self.method else self.label

    @property
    def tokens(self) -> int:
        """Draft tokens per round at most."""
        return self.setting.tokens


def sizes_of(way: Way, known: Recorded, new_tokens: int) -> list[Sizes]:
    """By prompt the rounds of a way as the engine counts them, by replay of its own plain text, which goes on past the
    answer, so that every round is decided.

    known: rounds start before the answer's end. new_tokens: the limit of an answer, which leaves room for so much; an
    earlier end of the text leaves fewer tokens that count.
    """
    method, trace = way.method, known.trace
    if method.at_prompt:  # the prompt's last token is the first root
        last = np.array([prompt[-1:].tolist() for prompt in known.prompts])
        trace = replace(trace, tokens=np.concatenate([last, trace.tokens], axis=1), lengths=trace.lengths + 1)
        known = Recorded(trace, [prompt[:-1] for prompt in known.prompts])
    walk = rounds(known, way.drafter, method.shape(way.tokens))
    sizes = method.ending(np.stack([walk.drafted, walk.accepted], axis=1),
                          new_tokens - (2 - method.at_prompt) - walk.starts,
                          trace.lengths[walk.rows] - walk.starts - 1)
    return [sizes[walk.rows == row] for row in range(len(known.prompts))]
