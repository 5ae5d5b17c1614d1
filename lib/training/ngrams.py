"""Tables of n-grams of a target, its favourite token after a few tokens: `python -m lib training ngrams --target T`.

A chat model's are counted in its own answers, without a forward pass: the next token of a greedy answer is its
favourite, that of a sampled one often is, and twice the text is worth more. Another target reads the training text.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

import numpy as np
import torch

from lib.attention.registration import tree_forward
from lib.drafters import ngrams
from lib.drafters.heads.store import NGRAMS
from lib.drafters.ngrams import NgramTables
from lib.training import data, family, loop, own_text
from lib.training.corpus import mixture
from lib.models.cache import TreeCache
from lib.models.fused import fused
from lib.models.load import load_pair

WINDOWS, LENGTH, SEED = 8000, 256, 17  # 2 M tokens; the target reads one window at a time
CONTEXT = 16  # tokens that the target has read before a favourite counts
ENTRIES = (4096, 12288, 8192)  # for contexts of 1, 2 and 3 tokens; this limits the size of the files
OWN_ENTRIES = (16384, 65536, 65536, 32768)  # of a chat model, at most 1.25 MiB
HELD_OUT_WINDOWS = 32  # of each kind of text
HELD_OUT_SHARE = 0.05  # of a chat model's dialogues


@dataclass(frozen=True)
class Places:
    """Where a target's favourite is known, or what it wrote instead: after token `last` of the text `tokens`, `said`.

    tokens int64[N], of all texts; last int64[P], at least as far into its own text as the longest context reaches; said
    int64[P].
    """

    tokens: np.ndarray
    last: np.ndarray
    said: np.ndarray

    def keys(self, n: int, vocabulary: int) -> np.ndarray:
        """The last n tokens at each place as one number, int64[P] (see `NgramTables`)."""
        return sum(self.tokens[self.last - k] * vocabulary**k for k in range(n))


def make(target_name: str, folder: Path, *, windows: int = WINDOWS) -> NgramTables:
    """Counts the tables of a target into folder/heads/TARGET/ngrams: one that has written dialogues (see `own_text`),
    or one as `heads.make` takes it.

    Its config.json also has how often the tables give the target's favourite in held-out text.
    """
    name = Path(target_name).name
    own = own_text.path_of(name).is_file()
    vocabulary, training, held_out = _dialogues(target_name) if own else _corpus(target_name, folder, windows)
    tables = tables_of(training, OWN_ENTRIES if own else ENTRIES, vocabulary)
    ngrams.save(tables, folder / "heads" / name / NGRAMS,
                {"tokens": len(training.tokens), "entries": [*map(len, tables.orders)],
                 "held_out_named": {kind: round(agreement(tables, places), 3) for kind, places in held_out.items()}})
    return tables


def _dialogues(target_name: str) -> tuple[int, Places, dict[str, Places]]:
    """The target's vocabulary, and the places in its answers: of training, and greedy ones held out."""
    pair, dialogues = load_pair(target_name, dtype="auto"), own_text.load(own_text.path_of(Path(target_name).name))
    training, held_out = (part.stream(*own_text.template(pair.tokenizer)) for part in dialogues.split(HELD_OUT_SHARE))
    return (pair.vocabulary, written(*training, (own_text.SAMPLED, own_text.GREEDY)),
            {"answers": written(*held_out, (own_text.GREEDY,))})


def written(tokens: np.ndarray, writers: np.ndarray, by: Sequence[int]) -> Places:
    """The places of `Dialogues.stream` whose next token was written by one of these."""
    said = np.flatnonzero(np.isin(writers, by))
    return Places(tokens, said - 1, tokens[said])


def _corpus(target_name: str, folder: Path, windows: int) -> tuple[int, Places, dict[str, Places]]:
    """The target's vocabulary, and the places in windows of the corpus: of training, and held out by kind of text."""
    target = family.frozen_pair(target_name, folder, "cpu").target
    streams = data.prepare(folder)

    def drawn(texts: dict[str, np.ndarray], shares: dict[str, float], count: int, step: int) -> Places:
        rows = data.windows(texts, shares, count, LENGTH, SEED, step)
        return windowed(rows.numpy(), favourites(target, rows))

    training = drawn(streams.train, mixture.SHARES, windows, 0)
    held_out = {kind: drawn({kind: stream}, {kind: 1.0}, HELD_OUT_WINDOWS, 1)
                for kind, stream in streams.held_out.items()}
    return target.config.vocab_size, training, held_out


@torch.inference_mode()
def favourites(target, windows: torch.Tensor) -> np.ndarray:
    """The target's most likely token after each token of windows int64[R, L], int64[R, L]."""
    model, places = fused(target), torch.arange(windows.shape[1])
    tokens = np.empty(windows.shape, dtype=np.int64)  # one array: small ones between freed logits fragment the heap
    for row, window in zip(tokens, loop.counted(windows, "windows of text that the target has read")):
        row[:] = tree_forward(model, window[None], places, None, TreeCache()).logits[0].argmax(-1)
    return tokens


def windowed(texts: np.ndarray, favourite: np.ndarray) -> Places:
    """The places of texts int64[R, L] with the favourite after each of their tokens, int64[R, L], except those after
    fewer than `CONTEXT` tokens.
    """
    last = np.arange(texts.size).reshape(texts.shape)[:, CONTEXT - 1 :].reshape(-1)
    return Places(texts.reshape(-1), last, favourite.reshape(-1)[last])


def tables_of(places: Places, entries: Sequence[int], vocabulary: int) -> NgramTables:
    """Tables with at most `entries` entries for each length of context, up to `CONTEXT` tokens.

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


def agreement(tables: NgramTables, places: Places) -> float:
    """The share of places whose favourite the tables give."""
    orders = len(tables.orders)
    given = [tables.favourite([key % tables.vocabulary**n for n in range(1, orders + 1)])
             for key in places.keys(orders, tables.vocabulary).tolist()]
    return float(np.mean(given == places.said))
