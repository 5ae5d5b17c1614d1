"""Tables of n-grams counted in text that a target wrote, without a forward pass."""

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from lib.drafters.ngrams import NgramTables


ENTRIES = (16384, 65536, 65536, 32768)  # of tables, for contexts of 1 to 4 tokens, at most 1.25 MiB


@dataclass(frozen=True)
class Places:
    """Places in the text of a target, at which a context ends and the target wrote the next token.

    tokens: int64[N], all texts one after another. last: int64[P], the index of each context's last token, far enough
    into its text for the longest context. said: int64[P], the next tokens.
    """

    tokens: np.ndarray
    last: np.ndarray
    said: np.ndarray

    def keys(self, n: int, vocabulary: int) -> np.ndarray:
        """The last n tokens at each place as one number, int64[P] (see `NgramTables`)."""
        return sum(self.tokens[self.last - k] * vocabulary**k for k in range(n))


def tables_of(places: Places, entries: Sequence[int], vocabulary: int) -> NgramTables:
    """Tables with at most `entries` entries for each length of context, the shortest first.

    An entry's gain is the number of places after its context that it predicts correctly, minus that of the shorter
    entries; the entries of largest gain are kept, if it is at least two.
    """
    tables = NgramTables((), vocabulary)
    chosen: list[dict[int, int]] = []
    for n, most in enumerate(entries, start=1):
        contexts, at = np.unique(places.keys(n, vocabulary), return_inverse=True)
        pairs, counts = np.unique(at * vocabulary + places.said, return_counts=True)
        of, token = pairs // vocabulary, pairs % vocabulary
        order = np.lexsort((token, -counts, of))  # each context's most frequent token first, the lowest of equals
        of, token, counts = of[order], token[order], counts[order]
        first = np.flatnonzero(np.diff(of, prepend=-1))
        shorter = np.array([tables.favourite([key % vocabulary**k for k in range(1, n)]) for key in contexts.tolist()])
        gain = counts[first] - np.bincount(of, counts * (token == shorter[of]), len(contexts)).astype(int)
        best = np.argsort(-gain, kind="stable")[:most]
        best = best[gain[best] >= 2]
        chosen.append(dict(zip(contexts[best].tolist(), token[first[best]].tolist())))
        tables = NgramTables(tuple(chosen), vocabulary)
    return tables


def of_answers(prompts: Sequence[np.ndarray], answers: Sequence[Sequence[int]], vocabulary: int) -> NgramTables:
    """The tables of a target's answers to prompts int64[T]; of shorter contexts alone where the keys of longer ones
    exceed 64 bits.
    """
    entries = ENTRIES
    while vocabulary ** len(entries) >= 2**63:
        entries = entries[:-1]
    texts = [np.concatenate([prompt, answer]) for prompt, answer in zip(prompts, answers)]
    ends = np.cumsum([len(text) for text in texts])
    said = np.concatenate([np.arange(end - len(answer), end) for end, answer in zip(ends, answers)])
    tokens = np.concatenate(texts).astype(np.int64)
    said = said[said >= len(entries)]
    return tables_of(Places(tokens, said - 1, tokens[said]), entries, vocabulary)
