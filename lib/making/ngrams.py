"""Tables of n-grams of a target, its favourite token after a few tokens, counted over the training text:
`python -m lib making ngrams --target T`.
"""

from pathlib import Path
from typing import Sequence

import numpy as np
import torch

from lib.attention.registration import tree_forward
from lib.drafters import ngrams
from lib.drafters.heads.store import NGRAMS
from lib.drafters.ngrams import NgramTables
from lib.making import data, family
from lib.making.corpus import mixture
from lib.making.heads import frozen_target
from lib.models.cache import TreeCache
from lib.models.fused import fused

WINDOWS, LENGTH, SEED = 8000, 256, 17  # 2 M tokens; the target reads one window at a time
CONTEXT = 16  # tokens that the target has read before a favourite counts
ENTRIES = (4096, 12288, 8192)  # for contexts of 1, 2 and 3 tokens; this limits the size of the files
HELD_OUT_WINDOWS = 32  # of each kind of text


def make(target_name: str, folder: Path, *, windows: int = WINDOWS) -> NgramTables:
    """Counts the tables of a target (see `heads.make`) into folder/heads/TARGET/ngrams.

    Its config.json also has how often the tables give the target's favourite in held-out text.
    """
    target = frozen_target(target_name, folder, "cpu")
    family.prepare(folder)
    streams = data.load_streams(folder)
    training = data.windows(streams.train, mixture.SHARES, windows, LENGTH, SEED, step=0)
    tables = tables_of(training.numpy(), favourites(target, training), ENTRIES, target.config.vocab_size)
    named = {}
    for kind, stream in streams.held_out.items():
        own = data.windows({kind: stream}, {kind: 1.0}, HELD_OUT_WINDOWS, LENGTH, SEED, step=1)
        named[kind] = round(agreement(tables, own.numpy(), favourites(target, own)), 3)
    ngrams.save(tables, folder / "heads" / Path(target_name).name / NGRAMS,
                      {"tokens": training.numel(), "entries": [*map(len, tables.orders)], "held_out_named": named})
    return tables


@torch.inference_mode()
def favourites(target, windows: torch.Tensor) -> np.ndarray:
    """The target's most likely token after each token of windows int64[R, L], int64[R, L]."""
    model, places = fused(target), torch.arange(windows.shape[1])
    tokens = np.empty(windows.shape, dtype=np.int64)  # one array: small ones between freed logits fragment the heap
    for row, window in zip(tokens, windows):
        row[:] = tree_forward(model, window[None], places, None, TreeCache()).logits[0].argmax(-1)
    return tokens


def tables_of(texts: np.ndarray, favourite: np.ndarray, entries: Sequence[int], vocabulary: int) -> NgramTables:
    """Tables with at most `entries` entries for each length of context, from texts int64[R, L] and the favourite after
    each of their tokens, int64[R, L].

    An entry's gain is the number of places after its context that it predicts correctly, minus that of the shorter
    entries; the entries of largest gain are kept, if it is at least two. Places with fewer than `CONTEXT` tokens before
    them do not count.
    """
    tables = NgramTables((), vocabulary)
    chosen: list[dict[int, int]] = []
    for n, most in enumerate(entries, start=1):
        keys, after = counted_places(texts, favourite, n, vocabulary)
        contexts, at = np.unique(keys, return_inverse=True)
        pairs, counts = np.unique(at * vocabulary + after, return_counts=True)
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


def counted_places(texts: np.ndarray, favourite: np.ndarray, n: int,
                   vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The last n tokens at each counted place, as one number, int64[P], and the favourite after them, int64[P]."""
    first, ends = max(CONTEXT, n) - 1, texts.shape[1]
    keys = sum(texts[:, first - k : ends - k] * vocabulary**k for k in range(n))
    return keys.reshape(-1), favourite[:, first:].reshape(-1)


def agreement(tables: NgramTables, texts: np.ndarray, favourite: np.ndarray) -> float:
    """The share of counted places whose favourite the tables give."""
    orders = len(tables.orders)
    keys, after = counted_places(texts, favourite, orders, tables.vocabulary)
    given = [tables.favourite([key % tables.vocabulary**n for n in range(1, orders + 1)]) for key in keys.tolist()]
    return float(np.mean(given == after))
