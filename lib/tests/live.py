"""Live decoding for tests, of prompts of any lengths, and its rounds beside those of replay."""

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


def continuation(model, prompt, new_tokens, **settings) -> list[int]:
    """A model's own greedy text after a prompt int64[T], by transformers."""
    settings = dict(do_sample=False, eos_token_id=None, pad_token_id=0) | settings
    return model.generate(prompt[None], max_new_tokens=new_tokens, **settings)[0, len(prompt) :].tolist()


def live_rounds(done: Generation) -> list[tuple[int, ...]]:
    """Row, start, accepted and drafted tokens of each round, by row."""
    return sorted((record.row, record.position - 1, record.accepted, record.drafted) for record in done.rounds)


def replayed_rounds(walk) -> list[tuple[int, ...]]:
    """The same of a walk by replay."""
    return [*zip(*(getattr(walk, name).tolist() for name in ("rows", "starts", "accepted", "drafted")))]
