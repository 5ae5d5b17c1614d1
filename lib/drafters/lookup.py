"""Prompt look-up: what followed the last few tokens when they stood in the text before (Saxena 2023); no model."""

from typing import Sequence

from torch import Tensor

from lib.drafters.token_trie import merge
from lib.tree import Tree
from lib.verify import Draft, Draws


class LookupDrafter:
    """Looks up the text's last n tokens, n from `longest` down to `shortest`, and proposes what followed, most recent first.

    A shape gives the number of nodes and their depth; the matches' continuations fill it as a trie, so that agreeing matches
    share a path. Without a match nothing is drafted.
    """

    calls = 0
    cache_bytes = 0

    def __init__(self, longest: int = 4, shortest: int = 1):
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams from {shortest} to {longest}: give 1 <= shortest <= longest")
        self.longest, self.shortest = longest, shortest

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Remembers the prompts int64[T]."""
        self.texts = [prompt.tolist() for prompt in prompts]
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The continuations of the longest match, then of shorter ones, up to the shape's budget and depth."""
        self.drafts = [merge(text[-1], self._continuations(text, shape.max_depth), shape.budget) for text in self.texts]
        return self.drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Appends what was kept to the texts, where it can be looked up from now on."""
        for row, (nodes, token) in enumerate(zip(accepted, bonus)):
            self.texts[row] += (self.drafts[row].tokens[nodes].tolist() if nodes else []) + [token]

    def select(self, rows: list[int]) -> None:
        """Keeps these rows."""
        self.texts = [self.texts[row] for row in rows]

    def _continuations(self, text: list[int], length: int):
        for n in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            wanted = text[-n:]
            for end in range(len(text) - 1, n - 1, -1):
                if text[end - n : end] == wanted:
                    yield text[end : end + length]
