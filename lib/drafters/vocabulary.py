"""Reduced draft vocabularies: models that draft the target's most frequent tokens alone (FR-Spec, Zhao et al. 2025)."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.forward.reduced import first_tokens, reduced
from lib.models.registry import SHIPPED

FILE = "vocabulary.npy"  # in the folder of a target's drafters: its tokens, the most frequent in its own text first
REDUCED = 8192  # tokens of a reduced vocabulary where a list of them ships


def drafting(model, pair, vocabulary: int | Tensor | None):
    """A draft model for a pair over the target's tokens, some int64[K], or the K that the target writes most often (see
    `shipped`). ValueError without a model.
    """
    if model is None:
        raise ValueError("the pair has no draft model; load a pair that has one, or take a drafter that needs none, "
                         "such as 'sam'")
    model = first_tokens(model, pair.target.config.get_text_config().vocab_size)
    tokens = shipped(pair.target_name, vocabulary) if isinstance(vocabulary, int) else vocabulary
    return model if tokens is None else reduced(model, tokens)


def shipped(target: str, count: int) -> Tensor:
    """The `count` tokens int64 that a target writes most often, from the first on. ValueError where fewer ship."""
    tokens = np.load(SHIPPED / target / FILE, allow_pickle=False).astype(np.int64) if ships(target) else np.arange(0)
    if not 0 < count <= len(tokens):
        raise ValueError(f"vocabulary is {count}, but {len(tokens)} frequent tokens ship for target {target!r}; give "
                         "1 or more of them, or tokens int64[K], such as most_frequent(texts)[:K] of its own texts")
    return torch.from_numpy(tokens[:count])


def ships(target: str) -> bool:
    """Whether a list of frequent tokens ships for a target."""
    return (SHIPPED / target / FILE).is_file()


def most_frequent(texts: Iterable[Sequence[int]]) -> Tensor:
    """The distinct tokens int64 of texts, the most frequent first, of equals the lower one."""
    tokens, counts = np.unique(np.concatenate([np.asarray(text, dtype=np.int64) for text in texts]), return_counts=True)
    return torch.from_numpy(tokens[np.argsort(-counts, kind="stable")])
