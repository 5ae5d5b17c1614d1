"""The target's own continuations: plain decoding in the same loop, with a tree that is a root alone."""

from typing import Sequence

import torch
from torch import Tensor

from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.drafters.drafter import ROOT_ALONE, NoDrafter


def continuations(
    target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    rows: int = 32,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """The target's own continuations of prompts int64[T], in batches of `rows` rows."""
    written: list[list[int]] = []
    for padded, mask in in_batches(prompts, rows):
        done = generate(
            target,
            NoDrafter(),
            padded,
            attention_mask=mask,
            shape=ROOT_ALONE,
            rule="naive" if temperature else "greedy",
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            generator=generator,
        )
        written += done.new_tokens
    return written
