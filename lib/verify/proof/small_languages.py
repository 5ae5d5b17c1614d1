"""Random languages of a few tokens, small enough that every sentence can be enumerated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from lib.verify.proof.enumeration import Language, Path
from lib.verify.warping import warp


@dataclass(frozen=True)
class Logits:
    """Standard normal logits float64[V] behind every path of up to `depth` tokens."""

    by_path: dict[Path, Tensor]

    @classmethod
    def random(cls, vocabulary: int, depth: int, generator: torch.Generator) -> Logits:
        """Independent logits everywhere."""
        paths = [path for length in range(depth + 1) for path in product(range(vocabulary), repeat=length)]
        return cls({path: torch.randn(vocabulary, dtype=torch.float64, generator=generator) for path in paths})

    def related(self, agreement: float, generator: torch.Generator) -> Logits:
        """Logits whose correlation with these is `agreement`, from 0 (none) to 1 (the same): a drafter for this
        target."""
        own, other = agreement, (1 - agreement**2) ** 0.5
        return Logits(
            {
                path: own * values + other * torch.randn(len(values), dtype=torch.float64, generator=generator)
                for path, values in self.by_path.items()
            }
        )

    def language(self, temperature: float = 1.0, spread: float = 2.0) -> Language:
        """The conditionals at a temperature; the larger the spread, the more certain each next token."""
        probs = {path: warp(spread * values, temperature) for path, values in self.by_path.items()}
        return probs.__getitem__
