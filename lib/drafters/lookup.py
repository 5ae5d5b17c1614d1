"""Prompt look-up: the tokens that followed earlier occurrences of the last few tokens (Saxena 2023); no model."""

from collections import Counter, defaultdict
from itertools import chain
from typing import Iterable, Iterator, Sequence

from lib.drafters.drafter import TextDrafter, merge
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

ORDERS = ("recent", "frequent")


class LookupDrafter(TextDrafter):
    """Looks up the text's last n tokens, n from `longest` down to `shortest`, and proposes the tokens after them.

    Of the matches for one n the most recent comes first, or with order="frequent" the most frequent continuation (the
    most recent of equals). A shape gives the number of nodes and their depth; the continuations fill it as a trie, so
    that agreeing matches share a path. Without a match nothing is drafted.
    """

    def __init__(self, longest: int = 4, shortest: int = 1, order: str = "recent"):
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams from {shortest} to {longest}: give 1 <= shortest <= longest")
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}; choose one of {', '.join(ORDERS)}")
        self.longest, self.shortest, self.order = longest, shortest, order

    def new_text(self) -> "IndexedText":
        """An empty text with an index of its n-grams."""
        return IndexedText(self.longest, self.shortest)

    def draft(self, text: "IndexedText", shape: Tree | Growth) -> Draft:
        """The continuations of the longest match, then of shorter ones, up to the shape's budget and depth."""
        ordered = iter if self.order == "recent" else by_frequency
        return merge(text.tokens[-1], chain.from_iterable(map(ordered, text.continuations(shape.max_depth))),
                     shape.budget)


class IndexedText:
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
        """For each n, longest first: the tokens after every earlier occurrence of the last n, most recent first."""
        for n in self.sizes:
            if n < len(self.tokens):
                ends = self.ends[tuple(self.tokens[-n:])]  # the last one is the text's own end
                yield (self.tokens[ends[i] : ends[i] + length] for i in range(len(ends) - 2, -1, -1))


def by_frequency(continuations: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Every prefix of the continuations, those that more of them share first; of equals the first to come.

    No prefix is shared by more of them than its own prefixes are, so a trie grows from the root outwards.
    """
    shared = Counter(tuple(sequence[:n]) for sequence in continuations for n in range(1, len(sequence) + 1))
    return sorted(shared, key=lambda prefix: -shared[prefix])  # stable: a Counter keeps the order of insertion
