"""Indexes of a growing text, by which drafters find how it may go on; tables of n-grams, counted in a target's text.

This file needs the standard library alone: who copies `lib/engines/workers/draft_proposer.py` for vLLM copies it too.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Iterable, Iterator, Mapping, Sequence

ROOT, NO_PARENT = 0, -1  # of a trie, and of a shape
Context = tuple[int, ...]  # the last tokens of a text
ENTRIES = (16384, 65536, 65536, 32768)  # of tables, for contexts of 1 to 4 tokens
LONGEST, LONG_MATCH = 4, 4  # tokens of n-grams that are looked up, and of matches that a combined drafter prefers


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


def paths(parents: Sequence[int]) -> list[Context]:
    """For each node the nodes from the root to it."""
    found = [(ROOT,)]
    for node, parent in enumerate(parents[1:], start=1):
        found.append((*found[parent], node))
    return found


class Matches:
    """A growing text, `tokens`, whose `continuations` are those of earlier places that its end matches."""

    def draft(self, parents: Sequence[int], ranks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Parents and tokens of the trie of continuations, with at most the nodes and levels of a shape."""
        depth = max(map(len, paths(parents))) - 1
        return trie(self.tokens[-1], self.continuations(depth), len(parents) - 1)


class LookupIndex(Matches):
    """A growing text, and the places in it after each of its n-grams of `shortest` to `longest` tokens."""

    def __init__(self, longest: int, shortest: int):
        self.sizes = range(longest, shortest - 1, -1)
        self.tokens: list[int] = []
        self.ends: dict[Context, list[int]] = defaultdict(list)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens, each after the n-grams before it."""
        for token in tokens:
            for n in self.sizes:
                if n <= len(self.tokens):
                    self.ends[tuple(self.tokens[-n:])].append(len(self.tokens))
            self.tokens.append(token)

    def continuations(self, length: int) -> Iterator[list[int]]:
        """Up to `length` tokens after every earlier occurrence of the text's last n tokens, for the largest n first, of
        one n the most recent first.
        """
        for n in self.sizes:
            for end in reversed(self.ends.get(tuple(self.tokens[-n:]), ())):
                yield self.tokens[end : end + length]


@dataclass(slots=True, eq=False)
class State:
    """Strings that end at the same places; `link` is the longest of their suffixes that also occurs elsewhere.

    end: a place after the strings: the last one at which they were the longest match, or else their first.
    """

    steps: dict[int, "State"]
    length: int  # of the longest string
    link: "State | None"
    end: int


class SuffixAutomaton(Matches):
    """Every substring of the tokens so far, in at most 2 n states; a token takes amortised constant time (Blumer et al.
    1985). The links of the whole text's state, `last`, lead to the suffixes that occurred before, the longest first.
    enough: the tokens of a match that has continuations.
    """

    def __init__(self, enough: int = 1):
        self.enough = enough
        self.tokens: list[int] = []
        self.start = self.last = State({}, 0, None, 0)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens; the match before each of them is noted as the last place of its strings."""
        for token in tokens:
            if self.matched():
                self.last.link.end = len(self.tokens)
            self.tokens.append(token)
            state, self.last = self.last, State({}, len(self.tokens), self.start, len(self.tokens))
            while state and token not in state.steps:
                state.steps[token] = self.last
                state = state.link
            if state:
                self.last.link = self._longest(state, token)

    def matched(self) -> int:
        """Length of the longest suffix that occurred before."""
        return self.last.link.length if self.tokens else 0

    def continuations(self, length: int) -> Iterator[list[int]]:
        """Up to `length` tokens after earlier occurrences of the text's suffixes, the longest suffix first: after its
        state's `end`, then after a place for each token that ever followed it, newest first.
        """
        state = self.last.link if self.matched() >= self.enough else None
        while state and state.length:
            for end in chain([state.end], (following.end - 1 for following in reversed(state.steps.values()))):
                yield self.tokens[end : end + length]
            state = state.link

    def _longest(self, state: State | None, token: int) -> State:
        """The state whose longest string is that of `state` and a token, parted from that of longer strings."""
        match = state.steps[token]
        if match.length == state.length + 1:
            return match
        match.link = part = State(dict(match.steps), state.length + 1, match.link, match.end)
        while state and state.steps.get(token) is match:
            state.steps[token] = part
            state = state.link
        return part


@dataclass(frozen=True)
class NgramTables:
    """A target's most frequent next token after 1, 2, ... tokens: orders[n - 1] maps contexts of n tokens to it.

    A longer context has an entry only where shorter ones give another token, so the longest has to be read first.
    vocabulary: the target's number of tokens.
    """

    orders: tuple[Mapping[Context, int], ...]
    vocabulary: int

    @classmethod
    def of(cls, folder: object, settings: Mapping, tensors: Mapping, vocabulary: int) -> "NgramTables":
        """The tables in a folder, of its settings and the tensors context.N [E, N] and said.N [E]. ValueError where
        they do not fit a target with so many tokens.
        """
        kind, size = settings.get("kind"), settings.get("vocab_size")
        if (kind, size) != ("ngrams", vocabulary):
            raise ValueError(f"the folder of tables is {str(folder)!r}, which holds {kind!r} of a target with "
                             f"vocab_size {size}, not 'ngrams' of one with {vocabulary}; name another folder")
        orders = []
        for n in range(1, 1 + sum(name.startswith("context.") for name in tensors)):
            columns = [tensors.get(f"{name}.{n}") for name in ("context", "said")]
            of_contexts, of_tokens = ([0] if column is None else [*column.shape] for column in columns)
            contexts, tokens = ([] if column is None else column.tolist() for column in columns)
            if of_contexts != [*of_tokens, n] or not all(map(range(vocabulary).__contains__, chain(tokens, *contexts))):
                raise ValueError(f"{folder}: context.{n} is {of_contexts} and said.{n} {of_tokens}, not [E, {n}] and "
                                 f"[E] of tokens below {vocabulary}; count the tables anew")
            orders.append(dict(zip(map(tuple, contexts), tokens)))
        return cls(tuple(orders), vocabulary)


def count_tables(prompts: Iterable[Sequence[int]], answers: Iterable[Sequence[int]], vocabulary: int,
                 entries: Sequence[int] = ENTRIES) -> NgramTables:
    """The tables of a target's answers to prompts, with at most `entries` entries for each length of context: those
    that predict the most tokens correctly that shorter entries do not, at least two.
    """
    tokens: list[int] = []
    answered: list[int] = []  # places of the answers' tokens
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens += prompt
        answered += range(len(tokens), len(tokens) + len(answer))
        tokens += answer
    tables = NgramTables((), vocabulary)
    for n, most in enumerate(entries, start=1):
        counts = Counter(tuple(tokens[end - n : end + 1]) for end in answered if end >= len(entries))
        favourites = {gram[:-1]: gram for gram in sorted(counts, key=lambda gram: (counts[gram], -gram[-1]))}
        shorter = NgramIndex(tables, enough=2, longest=1)  # which reads the tables so far alone
        gains = {}  # tokens that an entry predicts correctly, less those that shorter ones do
        for context, gram in favourites.items():
            predicted = shorter.candidates(context)[:1]
            gains[context] = counts[gram] - (counts[(*context, *predicted)] if predicted else 0)
        best = sorted((context for context in gains if gains[context] >= 2),
                      key=lambda context: (-gains[context], context))
        order = {context: favourites[context][-1] for context in best[:most]}
        tables = NgramTables((*tables.orders, order), vocabulary)
    return tables


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

    def candidates(self, context: Context) -> list[int]:
        """The distinct tokens that may follow a context, the best first."""
        found = dict.fromkeys(source.get(context[-n:]) for n, source in self.sources if n <= len(context))
        return [token for token in found if token is not None]

    def context_after(self, context: Context, token: int) -> Context:
        """A context and one more token."""
        return (*context, token)[-self.longest :]

    def fill(self, parents: Sequence[int], ranks: Sequence[int]) -> dict[int, int]:
        """The tokens of a shape's nodes, the root's first: of a node of rank r the r-th candidate after its parent.
        Nodes without one are left out, and those below them.
        """
        tokens, contexts, candidates = {ROOT: self.context[-1]}, {ROOT: self.context}, {}
        for node, (parent, rank) in enumerate(zip(parents, ranks)):
            if parent in tokens and parent not in candidates:
                candidates[parent] = self.candidates(contexts[parent])
            if rank < len(candidates.get(parent, ())):
                tokens[node] = candidates[parent][rank]
                contexts[node] = self.context_after(contexts[parent], tokens[node])
        return tokens

    def draft(self, parents: Sequence[int], ranks: Sequence[int]) -> tuple[list[int], list[int]]:
        """As `Matches.draft`, of the nodes that `fill` has."""
        tokens = self.fill(parents, ranks)
        places = {node: place for place, node in enumerate(tokens)}
        return [places.get(parents[node], NO_PARENT) for node in tokens], [*tokens.values()]


def indexes(kind: str, tables: NgramTables | None) -> list[Matches | NgramIndex]:
    """Of a new text for drafts of a kind: "lookup", "sam", and with tables "ngrams" or "combined". The first that
    drafts any token gives the draft.
    """
    ngrams = [NgramIndex(tables, enough=2, longest=LONGEST)] if tables else []
    matches = {"lookup": LookupIndex(LONGEST, 1), "sam": SuffixAutomaton(), "combined": SuffixAutomaton(LONG_MATCH)}
    return [matches[kind], *ngrams] if kind in matches else ngrams
