"""Indexes of a growing text, by which drafters find how it may go on; and tables of n-grams, counted in a target's text.

This file needs the standard library alone: who copies `lib/engines/workers/draft_proposer.py` for vLLM copies it too.

A key is an n-gram as one number: its tokens are the digits in base V, the vocabulary, and the last token is the lowest.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Iterable, Iterator, Mapping, Sequence

START, NOWHERE = 0, -1  # states of a suffix automaton: of the empty string, and the link of that state
ROOT, NO_PARENT = 0, -1  # of a trie
ENTRIES = (16384, 65536, 65536, 32768)  # of tables, for contexts of 1 to 4 tokens


def trie(root: int, sequences: Iterable[Sequence[int]], budget: int | None = None) -> tuple[list[int], list[int]]:
    """Parents and tokens of the trie of sequences after a root, up to `budget` nodes; siblings in the order they came.

    No more sequences are read than the budget takes.
    """
    parents, tokens, children = [NO_PARENT], [root], {}
    for sequence in sequences if budget != 0 else ():
        node = ROOT
        for token in sequence:
            if (node, token) not in children:
                children[node, token] = len(parents)
                parents.append(node)
                tokens.append(token)
            node = children[node, token]
            if node == budget:
                return parents, tokens
    return parents, tokens


class LookupIndex:
    """A growing text, and where each of its n-grams of `shortest` to `longest` tokens ends."""

    def __init__(self, longest: int, shortest: int):
        self.sizes = range(longest, shortest - 1, -1)
        self.tokens: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def extend(self, tokens: Iterable[int]) -> None:
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


class SuffixAutomaton:
    """Every substring of the tokens so far, in at most 2 n states; `append` takes amortised constant time per token.

    A state stands for strings that end at the same places; its `link` is the longest of their suffixes that also occurs
    elsewhere. So the link of the whole text's state is the longest suffix of the text that occurred before, and further
    links give shorter ones. `ends` holds one place after each state's strings: the last place at which they were the
    longest match, or else their first. (Keeping the last place for every state would take more than constant time.)
    (Blumer et al. 1985)
    """

    def __init__(self):
        self.tokens: list[int] = []
        self.steps: list[dict[int, int]] = [{}]  # state -> token -> state
        self.lengths = [0]  # of a state's longest string
        self.links = [NOWHERE]
        self.ends = [0]
        self.last = START

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens; the match before each of them is noted as the last place of its strings."""
        for token in tokens:
            if self.matched():
                self.ends[self.links[self.last]] = len(self.tokens)
            self.append(token)

    def append(self, token: int) -> None:
        """Appends a token."""
        self.tokens.append(token)
        whole_text = self._add({}, len(self.tokens), START, len(self.tokens))
        state, self.last = self.last, whole_text
        while state != NOWHERE and token not in self.steps[state]:
            self.steps[state][token] = whole_text
            state = self.links[state]
        if state == NOWHERE:
            return
        match = self.steps[state][token]
        if self.lengths[match] != self.lengths[state] + 1:
            match = self._split(state, token, match)
        self.links[whole_text] = match

    def matched(self) -> int:
        """Length of the longest suffix that occurred before."""
        return max(0, self.lengths[self.links[self.last]]) if self.tokens else 0

    def matches(self) -> Iterator[tuple[int, int]]:
        """Suffixes of the text that occurred before, longest first, as (length, place after an earlier occurrence).

        For each suffix first the place in `ends`, then one place for each token that ever followed it, newest first.
        """
        state = self.links[self.last]
        while state > START:
            yield self.lengths[state], self.ends[state]
            for following in reversed(self.steps[state].values()):
                yield self.lengths[state], self.ends[following] - 1
            state = self.links[state]

    def continuations(self, length: int, shortest: int = 1) -> Iterator[list[int]]:
        """Up to `length` tokens after each place of `matches`, for suffixes of `shortest` tokens or more."""
        return (self.tokens[place : place + length] for size, place in self.matches() if size >= shortest)

    def _add(self, steps: dict[int, int], length: int, link: int, end: int) -> int:
        self.steps.append(steps)
        self.lengths.append(length)
        self.links.append(link)
        self.ends.append(end)
        return len(self.lengths) - 1

    def _split(self, state: int, token: int, match: int) -> int:
        """A state for the shorter strings of `match`, which now end at one more place than its longer strings."""
        copy = self._add(dict(self.steps[match]), self.lengths[state] + 1, self.links[match], self.ends[match])
        self.links[match] = copy
        while state != NOWHERE and self.steps[state].get(token) == match:
            self.steps[state][token] = copy
            state = self.links[state]
        return copy


def key_of(context: Iterable[int], vocabulary: int) -> int:
    """The key of an n-gram."""
    return reduce(lambda key, token: key * vocabulary + token, context, 0)


@dataclass(frozen=True)
class NgramTables:
    """A target's most frequent next token after 1, 2, ... tokens: orders[n - 1] maps the keys of n tokens to it.

    A longer context has an entry only where shorter ones give another token, so the longest has to be read first.
    vocabulary: V, the target's. name_or_path: the folder that the tables were read from.
    """

    orders: tuple[Mapping[int, int], ...]
    vocabulary: int
    name_or_path: str = ""

    def next_token(self, keys: Sequence[int]) -> int:
        """The token after the longest context that has one; keys: of the last 1, 2, ... tokens. -1 for none."""
        found = (order[key] for order, key in reversed([*zip(self.orders, keys)]) if key in order)
        return next(found, -1)


def count_tables(tokens: Sequence[int], places: Sequence[int], entries: Sequence[int], vocabulary: int) -> NgramTables:
    """Tables with at most `entries` entries for each length of context, the shortest first.

    tokens: texts one after another. places: indices in them of the tokens that the target wrote, none of which has
    fewer tokens of its text before it than the longest context has.
    An entry's gain is the number of places after its context that it predicts correctly, minus that of the shorter
    entries; the entries of largest gain are kept, if it is at least two.
    """
    tables = NgramTables((), vocabulary)
    for n, most in enumerate(entries, start=1):
        counts = Counter(key_of(tokens[place - n : place + 1], vocabulary) for place in places)
        favourites: dict[int, tuple[int, int]] = {}  # context -> count and next token, of equals the lowest token
        for key, count in sorted(counts.items()):
            context, token = divmod(key, vocabulary)
            if count > favourites.get(context, (0, 0))[0]:
                favourites[context] = count, token
        gains = {}
        for context, (count, _) in favourites.items():
            shorter = tables.next_token([context % vocabulary**length for length in range(1, n)])
            gains[context] = count - (counts[context * vocabulary + shorter] if shorter >= 0 else 0)
        best = sorted((context for context, gain in gains.items() if gain >= 2), key=lambda context: -gains[context])
        order = {context: favourites[context][1] for context in islice(best, most)}
        tables = NgramTables((*tables.orders, order), vocabulary)
    return tables


def count_answers(prompts: Iterable[Sequence[int]], answers: Iterable[Sequence[int]], vocabulary: int) -> NgramTables:
    """The tables of a target's answers to prompts."""
    tokens: list[int] = []
    places: list[int] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens += prompt
        places += range(len(tokens), len(tokens) + len(answer))
        tokens += answer
    return count_tables(tokens, [place for place in places if place >= len(ENTRIES)], ENTRIES, vocabulary)


class NgramIndex:
    """A growing text, and the last token after each of its n-grams of up to `longest` tokens; and tables.

    A context's candidates are, in this order: the text's own for n-grams of `longest` down to `enough` tokens, the
    tables', the longest context first, and the text's own for shorter ones. With `enough` above `longest` only the
    tables are read.
    """

    def __init__(self, tables: NgramTables, enough: int, longest: int):
        self.vocabulary, self.longest = tables.vocabulary, max(longest, len(tables.orders))
        self.followed: list[dict[int, int]] = [{} for _ in range(longest if enough <= longest else 0)]
        self.keys: tuple[int, ...] = ()  # of the last 1, 2, ... tokens
        in_text, counted = ([*zip(orders, range(1, self.longest + 1))][::-1] for orders in
                            (self.followed, tables.orders))
        long = [source for source in in_text if source[1] >= enough]
        self.sources = [*long, *counted, *in_text[len(long) :]]  # each with the number of tokens of its contexts

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens, each as the last one after the n-grams before it."""
        for token in tokens:
            for followed, key in zip(self.followed, self.keys):
                followed[key] = token
            self.keys = self.keys_after(self.keys, token)

    def candidates(self, keys: Sequence[int]) -> Iterator[int]:
        """Tokens that may follow a context, the best first; some more than once."""
        for source, n in self.sources:
            if n <= len(keys) and (token := source.get(keys[n - 1])) is not None:
                yield token

    def keys_after(self, keys: Sequence[int], token: int) -> tuple[int, ...]:
        """The keys of a context and one more token."""
        return token, *[key * self.vocabulary + token for key in keys[: self.longest - 1]]
