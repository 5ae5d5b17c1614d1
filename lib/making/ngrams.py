"""Tables of n-grams of a target: what it favours behind a few tokens, counted over the training text;
`python -m lib making ngrams --target T`.
"""

from pathlib import Path
from typing import Sequence

import numpy as np
import torch

from lib.attention.operator import tree_forward
from lib.drafters import ngram_tables
from lib.drafters.ngram_tables import NgramTables
from lib.making import data, family
from lib.making.corpus import mixture
from lib.making.heads import frozen_target
from lib.models.cache import TreeCache
from lib.models.fused import fused

WINDOWS, LENGTH, SEED = 8000, 256, 17  # 2 M tokens, of which the target reads a window at a time
FROM = 16  # tokens that the target has read where its favourite first counts
ENTRIES = (4096, 12288, 8192)  # of contexts of 1, 2 and 3 tokens, that the files stay small
HELD_OUT_WINDOWS = 32  # of each kind of text


def make(target_name: str, folder: Path, *, windows: int = WINDOWS) -> NgramTables:
    """Counts the tables of a target (see `heads.make`) into folder/heads/TARGET/ngrams; its config.json says too how
    often they name the target's favourite in held-out text.
    """
    target = frozen_target(target_name, folder, "cpu")
    family.prepare(folder)
    streams = data.load_streams(folder)
    read = data.windows(streams.train, mixture.SHARES, windows, LENGTH, SEED, step=0)
    tables = tables_of(read.numpy(), favourites(target, read), ENTRIES, target.config.vocab_size)
    named = {}
    for kind, stream in streams.held_out.items():
        own = data.windows({kind: stream}, {kind: 1.0}, HELD_OUT_WINDOWS, LENGTH, SEED, step=1)
        named[kind] = round(agreement(tables, own.numpy(), favourites(target, own)), 3)
    ngram_tables.save(tables, folder / "heads" / Path(target_name).name / ngram_tables.KIND,
                      {"tokens": read.numel(), "entries": [*map(len, tables.orders)], "held_out_named": named})
    return tables


@torch.inference_mode()
def favourites(target, windows: torch.Tensor) -> np.ndarray:
    """The target's most likely token behind every token of windows int64[R, L], int64[R, L]."""
    model, places = fused(target), torch.arange(windows.shape[1])
    said = np.empty(windows.shape, dtype=np.int64)  # one piece: small ones between freed logits would tear the heap
    for row, window in zip(said, windows):
        row[:] = tree_forward(model, window[None], places, None, TreeCache()).logits[0].argmax(-1)
    return said


def tables_of(read: np.ndarray, said: np.ndarray, entries: Sequence[int], vocabulary: int) -> NgramTables:
    """Tables with so many entries of each length of context, of texts int64[R, L] and what was said behind each token.

    An entry's worth is how many more of the places behind its context it names rightly than the shorter entries do;
    those worth most are kept, none that is worth less than two. Places with fewer than FROM tokens before do not count.
    """
    tables = NgramTables((), vocabulary)
    chosen: list[dict[int, int]] = []
    for n, most in enumerate(entries, start=1):
        keys, behind = counted_places(read, said, n, vocabulary)
        contexts, at = np.unique(keys, return_inverse=True)
        pairs, counts = np.unique(at * vocabulary + behind, return_counts=True)
        of, token = pairs // vocabulary, pairs % vocabulary
        order = np.lexsort((token, -counts, of))  # each context's most frequent token first, of equals the lowest
        of, token, counts = of[order], token[order], counts[order]
        favourite = np.flatnonzero(np.diff(of, prepend=-1))
        shorter = np.array([tables.favourite([key % vocabulary**k for k in range(1, n)]) for key in contexts.tolist()])
        worth = counts[favourite] - np.bincount(of, counts * (token == shorter[of]), len(contexts)).astype(int)
        best = np.argsort(-worth, kind="stable")[:most]
        best = best[worth[best] >= 2]
        chosen.append(dict(zip(contexts[best].tolist(), token[favourite[best]].tolist())))
        tables = NgramTables(tuple(chosen), vocabulary)
    return tables


def counted_places(read: np.ndarray, said: np.ndarray, n: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of the last n tokens at every counted place, int64[P], and what was said behind them, int64[P]."""
    first, ends = max(FROM, n) - 1, read.shape[1]
    keys = sum(read[:, first - k : ends - k] * vocabulary**k for k in range(n))
    return keys.reshape(-1), said[:, first:].reshape(-1)


def agreement(tables: NgramTables, read: np.ndarray, said: np.ndarray) -> float:
    """The share of counted places whose token the tables name."""
    orders = len(tables.orders)
    keys, behind = counted_places(read, said, orders, tables.vocabulary)
    named = [tables.favourite([key % tables.vocabulary**n for n in range(1, orders + 1)]) for key in keys.tolist()]
    return float(np.mean(named == behind))
