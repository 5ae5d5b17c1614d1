"""Prompt look-up: what followed the last few tokens when they stood in the text before (Saxena 2023); no model."""

from collections import Counter, defaultdict
from typing import Iterable, Iterator, Sequence

from torch import Tensor

from lib.drafters.text_state import FollowsTexts
from lib.drafters.token_trie import merge
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws

ORDERS = ("recent", "frequent")


class LookupDrafter(FollowsTexts):
    """Looks up the text's last n tokens, n from `longest` down to `shortest`, and proposes what followed them.

    Of one n's matches the most recent comes first, or with order="frequent" whatever followed most often (the most
    recent of equals). A shape gives the number of nodes and their depth; the continuations fill it as a trie, so that
    agreeing matches share a path. Without a match nothing is drafted.
    """

    def __init__(self, longest: int = 4, shortest: int = 1, order: str = "recent"):
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams from {shortest} to {longest}: give 1 <= shortest <= longest")
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}; choose one of {', '.join(ORDERS)}")
        self.longest, self.shortest, self.order = longest, shortest, order

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the prompts int64[T]."""
        self.texts = [_Text(self.longest, self.shortest) for _ in prompts]
        for text, prompt in zip(self.texts, prompts):
            text.extend(prompt.tolist())
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The continuations of the longest match, then of shorter ones, up to the shape's budget and depth."""
        depth = getattr(shape, "max_depth", shape.budget)  # a rule over depths leaves it to the drafter
        self.drafts = [merge(text.tokens[-1], self._ordered(text, depth), shape.budget) for text in self.texts]
        return self.drafts

    def _ordered(self, text: "_Text", length: int) -> Iterator[Sequence[int]]:
        for matches in text.continuations(length):
            yield from matches if self.order == "recent" else by_frequency(matches)


class _Text:
    """A growing text, and where each of its n-grams ends."""

    def __init__(self, longest: int, shortest: int):
        self.sizes = range(longest, shortest - 1, -1)
        self.tokens: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens and indexes the n-grams that they complete."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for n in self.sizes:
                if n <= end:
                    self.ends[tuple(self.tokens[end - n :])].append(end)

    def continuations(self, length: int) -> Iterator[Iterator[list[int]]]:
        """For each n, longest first: the tokens behind every earlier place of the last n, most recent place first."""
        for n in self.sizes:
            if n < len(self.tokens):
                ends = self.ends[tuple(self.tokens[-n:])]  # the last one is the text's own end
                yield (self.tokens[ends[i] : ends[i] + length] for i in range(len(ends) - 2, -1, -1))


def by_frequency(continuations: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Every prefix of the continuations, those that more of them share first; of equals the first to come.

    A prefix is shared by no more of them than its own prefixes are, so that a trie grows from the root outwards.
    """
    shared = Counter(tuple(sequence[:n]) for sequence in continuations for n in range(1, len(sequence) + 1))
    return sorted(shared, key=lambda prefix: -shared[prefix])  # stable: a Counter remembers who came first
