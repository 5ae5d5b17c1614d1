"""Live decoding for tests, of prompts of any lengths."""

from dataclasses import replace

import torch
from torch.nn.utils.rnn import pad_sequence

from lib.decoding.loop import generate, in_batches
from lib.decoding.records import Generation
from lib.lab import cluster


def decode(target, drafter, prompts, *, rows=16, seed=0, **settings):
    """`generate` over prompts in batches of at most `rows`, as one generation; each batch has draws of its own."""
    rounds, written, calls = [], [], torch.zeros(2, dtype=torch.int64)
    for number, (tokens, mask) in enumerate(in_batches(prompts, rows)):
        part = generate(target, drafter, tokens, attention_mask=mask, generator=cluster.seeded(seed, number * rows),
                        **settings)
        calls += torch.tensor([part.target_calls, part.drafter_calls])
        rounds += [replace(record, row=record.row + len(written)) for record in part.rounds]
        written += part.new_tokens
    return Generation(pad_sequence([torch.tensor(row) for row in written], batch_first=True), rounds, written,
                      *calls.tolist())
