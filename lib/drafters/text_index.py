"""Indexes of a growing text, by which drafters find how it may go on; tables of n-grams, counted in a target's text.

This file needs the standard library alone: who copies `lib/engines/workers/draft_proposer.py` for vLLM copies it too.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Iterable, Iterator, Mapping, Sequence

START, NOWHERE = 0, -1  # states of a suffix automaton: of the empty string, and the link of that state
ROOT, NO_PARENT = 0, -1  # of a trie
Context = tuple[int, ...]  # the last tokens of a text
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

    def continuations(self, length: int) -> Iterator[list[int]]:
        """Up to `length` tokens after every earlier occurrence of the text's last n tokens, for the largest n first, of
        one n the most recent first.
        """
        for n in self.sizes:
            if n < len(self.tokens):
                ends = self.ends[tuple(self.tokens[-n:])]  # the last one is the text's own end
                yield from (self.tokens[ends[i] : ends[i] + length] for i in range(len(ends) - 2, -1, -1))


class SuffixAutomaton:
    """Every substring of the tokens so far, in at most 2 n states; a token takes amortised constant time.

    A state stands for strings that end at the same places; its `link` is the longest of their suffixes that also occurs
    elsewhere. So the link of the whole text's state is the longest suffix of the text that occurred before, and further
    links give shorter ones. `ends` holds one place after each state's strings: the last place at which they were the
    longest match, or else their first. (Blumer et al. 1985)
    """

    def __init__(self):
        self.tokens: list[int] = []
        self.steps: list[dict[int, int]] = [{}]  # state -> token -> state
        self.lengths = [0]  # of a state's longest string
        self.links = [NOWHERE]
        self.ends = [0]
        self.last = START  # the state of the whole text

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens; the match before each of them is noted as the last place of its strings."""
        for token in tokens:
            if self.matched():
                self.ends[self.links[self.last]] = len(self.tokens)
            self.tokens.append(token)
            state, self.last = self.last, self._add({}, len(self.tokens), START, len(self.tokens))
            while state != NOWHERE and token not in self.steps[state]:
                self.steps[state][token] = self.last
                state = self.links[state]
            if state != NOWHERE:
                match = self.steps[state][token]
                is_whole = self.lengths[match] == self.lengths[state] + 1
                self.links[self.last] = match if is_whole else self._split(state, token, match)

    def matched(self) -> int:
        """Length of the longest suffix that occurred before."""
        return max(0, self.lengths[self.links[self.last]]) if self.tokens else 0

    def matches(self) -> Iterator[tuple[int, int]]:
        """Suffixes of the text that occurred before, longest first, as (length, place after an earlier occurrence).

        For each suffix first the place in `ends`, then one for each token that ever followed it, newest first.
        """
        state = self.links[self.last]
        while state > START:
            yield self.lengths[state], self.ends[state]
            for following in reversed(self.steps[state].values()):
                yield self.lengths[state], self.ends[following] - 1
            state = self.links[state]

    def continuations(self, length: int, shortest: int = 1) -> Iterator[list[int]]:
        """Up to `length` tokens after each place of `matches`, for suffixes of `shortest` tokens or more."""
        return (self.tokens[end : end + length] for size, end in self.matches() if size >= shortest)

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


@dataclass(frozen=True)
class NgramTables:
    """A target's most frequent next token after 1, 2, ... tokens: orders[n - 1] maps contexts of n tokens to it.

    A longer context has an entry only where shorter ones give another token, so the longest has to be read first.
    vocabulary: the target's number of tokens. name_or_path: the folder that the tables were read from.
    """

    orders: tuple[Mapping[Context, int], ...]
    vocabulary: int
    name_or_path: str = ""

    def next_token(self, context: Context) -> int | None:
        """The token after the longest end of a context that has one; None without one."""
        found = (order.get(context[-n:]) for n, order in reversed([*enumerate(self.orders, start=1)]))
        return next((token for token in found if token is not None), None)


def count_tables(tokens: Sequence[int], indices: Sequence[int], entries: Sequence[int], vocabulary: int) -> NgramTables:
    """Tables with at most `entries` entries for each length of context, the shortest first: those that predict the most
    tokens correctly that shorter entries do not, at least two.

    tokens: texts one after another. indices: of the tokens in them that the target wrote, past the longest context.
    """
    tables = NgramTables((), vocabulary)
    for n, most in enumerate(entries, start=1):
        counts = Counter(tuple(tokens[index - n : index + 1]) for index in indices)
        favourites: dict[Context, tuple[int, int]] = {}  # context -> count and next token, of equals the lowest token
        for (*context, token), count in sorted(counts.items()):
            if count > favourites.get(tuple(context), (0, 0))[0]:
                favourites[tuple(context)] = count, token
        gains = {context: count - counts.get((*context, tables.next_token(context)), 0)
                 for context, (count, _) in favourites.items()}
        best = sorted((context for context, gain in gains.items() if gain >= 2), key=lambda context: -gains[context])
        order = {context: favourites[context][1] for context in best[:most]}
        tables = NgramTables((*tables.orders, order), vocabulary)
    return tables


def count_answers(prompts: Iterable[Sequence[int]], answers: Iterable[Sequence[int]], vocabulary: int) -> NgramTables:
    """The tables of a target's answers to prompts."""
    tokens: list[int] = []
    indices: list[int] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens += prompt
        indices += range(len(tokens), len(tokens) + len(answer))
        tokens += answer
    return count_tables(tokens, [index for index in indices if index >= len(ENTRIES)], ENTRIES, vocabulary)


class NgramIndex:
    """A growing text, and the last token after each of its n-grams of up to `longest` tokens; and tables.

    A context's candidates are, in this order: the text's for n-grams of `longest` down to `enough` tokens, the tables',
    and the text's for shorter ones. With `enough` above `longest` only the tables are read.
    """

    def __init__(self, tables: NgramTables, enough: int, longest: int):
        self.vocabulary, self.longest = tables.vocabulary, max(longest, len(tables.orders))
        self.followed: list[dict[Context, int]] = [{} for _ in range(longest if enough <= longest else 0)]
        self.context: Context = ()  # the last tokens, as many as a source reads
        in_text, counted = ([*enumerate(orders, start=1)][::-1] for orders in (self.followed, tables.orders))
        long = [(n, source) for n, source in in_text if n >= enough]
        self.sources = [*long, *counted, *in_text[len(long) :]]  # each with the number of tokens of its contexts

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens, each as the last one after the n-grams before it."""
        for token in tokens:
            for n, followed in enumerate(self.followed[: len(self.context)], start=1):
                followed[self.context[-n:]] = token
            self.context = self.context_after(self.context, token)

    def candidates(self, context: Context) -> Iterator[int]:
        """Tokens that may follow a context, the best first; some more than once."""
        for n, source in self.sources:
            if n <= len(context) and (token := source.get(context[-n:])) is not None:
                yield token

    def context_after(self, context: Context, token: int) -> Context:
        """A context and one more token."""
        return (*context, token)[-self.longest :]
