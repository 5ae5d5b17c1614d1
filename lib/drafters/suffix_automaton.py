"""Look-up by suffix automaton: the tokens after earlier occurrences of the text's longest suffix (Hu et al. 2024)."""

from typing import Iterable, Iterator

from lib.drafters.drafter import TextDrafter, merge
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

START, NOWHERE = 0, -1


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
        here = self._add({}, len(self.tokens), START, len(self.tokens))
        state, self.last = self.last, here
        while state != NOWHERE and token not in self.steps[state]:
            self.steps[state][token] = here
            state = self.links[state]
        if state == NOWHERE:
            return
        match = self.steps[state][token]
        if self.lengths[match] != self.lengths[state] + 1:
            match = self._split(state, token, match)
        self.links[here] = match

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

    def matched(self) -> int:
        """Length of the longest suffix that occurred before."""
        return max(0, self.lengths[self.links[self.last]]) if self.tokens else 0

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


class SuffixAutomatonDrafter(TextDrafter):
    """Proposes the tokens after the longest earlier match of the text's suffix, then those after shorter ones.

    Matches have any length from `shortest` tokens on (an n-gram look-up has a longest), and finding one takes amortised
    constant time per token (SAM-Decoding, section 3.2). A shape gives the number of nodes and their depth; the
    continuations fill it as a trie. Without a match nothing is drafted.
    """

    def __init__(self, shortest: int = 1):
        if shortest < 1:
            raise ValueError(f"shortest match is {shortest}; give 1 or more tokens")
        self.shortest = shortest

    def new_text(self) -> SuffixAutomaton:
        """An empty automaton."""
        return SuffixAutomaton()

    def draft(self, text: SuffixAutomaton, shape: Tree | Growth) -> Draft:
        """The continuations of the longest match, then of shorter ones, up to the shape's budget and depth."""
        places = (place for length, place in text.matches() if length >= self.shortest)
        return merge(text.tokens[-1], (text.tokens[place : place + shape.max_depth] for place in places), shape.budget)

    def matched(self) -> list[int]:
        """The length of each row's longest match, in tokens."""
        return [text.matched() for text in self.texts]
