"""Reduced draft vocabularies (Zhao et al. 2025, FR-Spec): draft models propose the target's most frequent tokens alone,
and read that part of their output layer; verification stays over the full vocabulary.
"""

from typing import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.forward.reduced import first_tokens, reduced
from lib.models.registry import SHIPPED

FILE = "vocabulary.npy"  # in the folder of a target's drafters: its tokens, the most frequent in its own text first
REDUCED = 8192  # tokens of a reduced vocabulary where a list of them ships


def drafting(model, pair, vocabulary: int | Tensor | None):
    """A draft model for a pair, over the target's tokens or some of them. ValueError without a model.

    vocabulary: tokens int64[K]; or K, for the K tokens that the target writes most often (see `shipped`).
    """
    if model is None:
        raise ValueError("the pair has no draft model; load a pair that has one, or take a drafter that needs none, "
                         "such as 'sam'")
    model = first_tokens(model, pair.target.config.get_text_config().vocab_size)
    if isinstance(vocabulary, int):
        vocabulary = shipped(pair.target_name, vocabulary)
    return model if vocabulary is None else reduced(model, vocabulary)


def shipped(target: str, count: int) -> Tensor:
    """The `count` tokens int64 that a target writes most often, from the first on. ValueError where fewer ship."""
    if not ships(target):
        raise ValueError(f"no list of frequent tokens ships for target {target!r}; pass the tokens as int64[K], such "
                         "as most_frequent(texts)[:K] of the target's own texts, or leave vocabulary out")
    tokens = torch.from_numpy(np.load(SHIPPED / target / FILE, allow_pickle=False).astype(np.int64))
    if not 0 < count <= len(tokens):
        raise ValueError(f"vocabulary is {count}; target {target!r} lists fewer: give 1 to {len(tokens)}")
    return tokens[:count]


def ships(target: str) -> bool:
    """Whether a list of frequent tokens ships for a target."""
    return (SHIPPED / target / FILE).is_file()


def most_frequent(texts: Iterable[Sequence[int]]) -> Tensor:
    """The distinct tokens int64 of texts, the most frequent first, of equals the lower one."""
    tokens, counts = np.unique(np.concatenate([np.asarray(text, dtype=np.int64) for text in texts]), return_counts=True)
    return torch.from_numpy(tokens[np.argsort(-counts, kind="stable")])
