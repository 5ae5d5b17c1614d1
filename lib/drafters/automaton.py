"""The suffix automaton of a growing text: which of its endings stood in it before, and where (Blumer et al. 1985)."""

from typing import Iterator

START, NOWHERE = 0, -1


class SuffixAutomaton:
    """Every substring of the tokens so far, in at most 2 n states; `extend` takes amortised constant time a token.

    A state stands for strings that end at the same places; its `link` is the longest of their endings that also stands
    elsewhere. So the link of the whole text's state is the longest ending of the text that occurred before, and further
    links give shorter ones. `ends` holds one place behind each state's strings: the last place at which they were the
    longest match, or else their first. (Keeping the last place for every state would cost more than constant time.)
    """

    def __init__(self):
        self.tokens: list[int] = []
        self.steps: list[dict[int, int]] = [{}]  # state -> token -> state
        self.lengths = [0]  # of a state's longest string
        self.links = [NOWHERE]
        self.ends = [0]
        self.last = START

    def extend(self, token: int) -> None:
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
        """Endings of the text that occurred before, longest first, as (length, place behind an earlier one).

        Of each ending first the place in `ends`, then one place for each token that ever followed it, newest first.
        """
        state = self.links[self.last]
        while state > START:
            yield self.lengths[state], self.ends[state]
            for following in reversed(self.steps[state].values()):
                yield self.lengths[state], self.ends[following] - 1
            state = self.links[state]

    def matched(self) -> int:
        """Length of the longest ending that occurred before."""
        return max(0, self.lengths[self.links[self.last]]) if self.tokens else 0

    def touch(self) -> None:
        """Notes the text's end as the last place of the longest match; call it when its matches have been read."""
        if self.matched():
            self.ends[self.links[self.last]] = len(self.tokens)

    def _add(self, steps: dict[int, int], length: int, link: int, end: int) -> int:
        self.steps.append(steps)
        self.lengths.append(length)
        self.links.append(link)
        self.ends.append(end)
        return len(self.lengths) - 1

    def _split(self, state: int, token: int, match: int) -> int:
        """A state for the shorter strings of `match`, which from now on end at one more place than its longer ones."""
        copy = self._add(dict(self.steps[match]), self.lengths[state] + 1, self.links[match], self.ends[match])
        self.links[match] = copy
        while state != NOWHERE and self.steps[state].get(token) == match:
            self.steps[state][token] = copy
            state = self.links[state]
        return copy
