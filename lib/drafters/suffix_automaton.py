"""Look-up by suffix automaton: what followed the text's longest ending that stood in it before (Hu et al. 2024)."""

from typing import Iterator, Sequence

from torch import Tensor

from lib.drafters.automaton import SuffixAutomaton
from lib.drafters.token_trie import merge
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws


class SuffixAutomatonDrafter:
    """Proposes what followed the longest earlier match of the text's ending, then what followed shorter ones.

    Matches have any length from `shortest` tokens on (an n-gram look-up has a longest), and finding one costs amortised
    constant time a token (SAM-Decoding, section 3.2). A shape gives the number of nodes and their depth, which the
    continuations fill as a trie. Without a match nothing is drafted.
    """

    calls = 0
    cache_bytes = 0

    def __init__(self, shortest: int = 1):
        if shortest < 1:
            raise ValueError(f"shortest match is {shortest}; give 1 or more tokens")
        self.shortest = shortest

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Reads the prompts int64[T]."""
        self.texts = [SuffixAutomaton() for _ in prompts]
        self.drafts: list[Draft] = []
        for text, prompt in zip(self.texts, prompts):
            _read(text, prompt.tolist())

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The continuations of the longest match, then of shorter ones, up to the shape's budget and depth."""
        depth = getattr(shape, "max_depth", shape.budget)  # a rule over depths leaves it to the drafter
        self.drafts = [merge(text.tokens[-1], self._continuations(text, depth), shape.budget)
                       for text in self.texts]
        return self.drafts

    def matched(self) -> list[int]:
        """The length of each row's longest match, in tokens."""
        return [text.matched() for text in self.texts]

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Appends what was kept to the texts."""
        self.advance([[*self.drafts[row].tokens_of(nodes), token] if nodes else [token]
                      for row, (nodes, token) in enumerate(zip(accepted, bonus))])

    def advance(self, following: Sequence[Sequence[int]]) -> None:
        """Appends tokens to each row's text, whoever proposed them."""
        for text, tokens in zip(self.texts, following, strict=True):
            _read(text, tokens)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.texts = [self.texts[row] for row in rows]

    def _continuations(self, text: SuffixAutomaton, length: int) -> Iterator[Sequence[int]]:
        return (text.tokens[end : end + length] for matched, end in text.matches() if matched >= self.shortest)


def _read(text: SuffixAutomaton, tokens: Sequence[int]) -> None:
    """Appends tokens; a match of the text so far is noted before the next token moves it on."""
    for token in tokens:
        text.touch()
        text.extend(token)
