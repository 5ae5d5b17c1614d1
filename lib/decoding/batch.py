"""Prompts in batches, and the target's own continuations of them."""

from typing import Iterator, Sequence

import torch
from torch import Tensor

from lib.decoding.loop import generate
from lib.drafters.drafter import ROOT_ALONE, NoDrafter


def in_batches(prompts: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts int64[T] right-padded in batches of `rows` rows: tokens int64[B, T] and their mask bool[B, T]."""
    for first in range(0, len(prompts), rows):
        batch = list(prompts[first : first + rows])
        padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        yield padded, torch.arange(padded.shape[1])[None] < torch.tensor([len(prompt) for prompt in batch])[:, None]


def continuations(target, prompts: Sequence[Tensor], *, max_new_tokens: int, temperature: float = 0.0, rows: int = 32,
                  eos_token_id: int | Sequence[int] | None = None,
                  generator: torch.Generator | None = None) -> list[list[int]]:
    """The target's own continuations of prompts int64[T], in batches of `rows` rows: plain decoding in the same loop,
    with a tree that is a root alone.
    """
    written: list[list[int]] = []
    for padded, mask in in_batches(prompts, rows):
        done = generate(target, NoDrafter(), padded, attention_mask=mask, shape=ROOT_ALONE,
                        rule="naive" if temperature else "greedy", temperature=temperature,
                        max_new_tokens=max_new_tokens, eos_token_id=eos_token_id, generator=generator)
        written += done.new_tokens
    return written
