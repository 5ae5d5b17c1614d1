"""Languages of a few tokens, small enough to enumerate every text: random ones, and pairs that are hard for rules."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from lib.verify.proof.enumeration import Language, Path
from lib.verify.warping import warp

VOCABULARY, DEPTH = 3, 3


@dataclass(frozen=True)
class Logits:
    """Standard normal logits float64[V] after every path of up to `depth` tokens."""

    by_path: dict[Path, Tensor]

    @classmethod
    def random(cls, vocabulary: int, depth: int, generator: torch.Generator) -> Logits:
        """Independent logits after each path."""
        paths = [path for length in range(depth + 1) for path in product(range(vocabulary), repeat=length)]
        return cls({path: torch.randn(vocabulary, dtype=torch.float64, generator=generator) for path in paths})

    def related(self, agreement: float, generator: torch.Generator) -> Logits:
        """A drafter for this target: logits whose correlation with these is `agreement`, from 0 to 1 (the same)."""
        noise = (1 - agreement**2) ** 0.5
        return Logits({path: agreement * logits + noise * torch.randn(len(logits), dtype=torch.float64,
                                                                      generator=generator)
                       for path, logits in self.by_path.items()})

    def language(self, temperature: float = 1.0, spread: float = 2.0) -> Language:
        """The conditional distributions at a temperature; a larger spread makes each next token more certain."""
        probs = {path: warp(spread * logits, temperature) for path, logits in self.by_path.items()}
        return probs.__getitem__


def random_pair(seed: int, vocabulary: int = VOCABULARY, depth: int = DEPTH) -> list[Language]:
    """A random target and drafter, more or less related; every third pair has zeros, every fifth is nearly certain."""
    generator = torch.Generator().manual_seed(seed)
    target = Logits.random(vocabulary, depth, generator)
    drafter = target.related(float(torch.rand((), generator=generator)), generator)
    spread = 12.0 if seed % 5 == 4 else 2.0
    pair = [target.language(1.0, spread), drafter.language(1.0, spread)]
    return [_thinned(language, index) for index, language in enumerate(pair)] if seed % 3 == 2 else pair


def _thinned(language: Language, index: int) -> Language:
    """The language without one token after each path; the token changes with the path and with the index."""
    def probs(path):
        p = language(path).clone()
        p[(sum(path) + index + len(path)) % len(p)] = 0
        return p / p.sum()

    return probs


def constant(*masses: float) -> Language:
    """The language with the same conditional distribution after every path."""
    p = torch.tensor(masses, dtype=torch.float64)
    p = p / p.sum()
    return lambda path: p


def _turning(language: Language) -> Language:
    """The language with its tokens rotated by the depth, so that levels differ."""
    return lambda path: language(path).roll(len(path))


_mild = random_pair(1)[0]
# Pairs that have exposed wrong rules: disjoint supports, zeros, ties, certainty, equality.
HARD = {
    "equal": (_mild, _mild),
    "uniform, equal": (constant(1, 1, 1), constant(1, 1, 1)),
    "disjoint": (constant(1, 2, 0), constant(0, 0, 1)),
    "disjoint, drafter wide": (constant(0, 0, 1), constant(3, 1, 0)),
    "overlap in one": (constant(1, 1, 0), constant(0, 1, 2)),
    "target certain": (constant(0, 1, 0), constant(2, 1, 1)),
    "drafter certain, right": (constant(2, 1, 1), constant(1, 0, 0)),
    "drafter certain, wrong": (constant(0, 2, 1), constant(1, 0, 0)),
    "both certain, equal": (constant(1, 0, 0), constant(1, 0, 0)),
    "both certain, apart": (constant(1, 0, 0), constant(0, 1, 0)),
    "ties": (constant(2, 1, 1), constant(1, 1, 2)),
    "drafter nearly certain": (constant(1, 1, 1), constant(1, 1e-9, 1e-18)),
    "drafter almost equal": (constant(0.5, 0.3, 0.2), constant(0.5, 0.3 + 1e-15, 0.2 - 1e-15)),
    "a denormal": (constant(1, 1e-310, 1), constant(1e-310, 1, 1)),
    "turning": (_turning(constant(3, 2, 0)), _turning(constant(0, 1, 1))),
    "turning, apart": (_turning(constant(3, 0, 1)), _turning(constant(0, 1, 0))),
}
