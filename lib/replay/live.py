"""Live decoding in the rows of replay, for what replay cannot give exactly: rules for sampled children, and drafters
with a memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.decoding.loop import generate, in_batches
from lib.decoding.records import Generation
from lib.drafters.registry import make
from lib.lab import cluster
from lib.replay import acceptance
from lib.replay.trace import loop_start
from lib.trees import named

ROWS = 16  # prompts per batch
PromptBatch = tuple[int, tuple[Tensor, ...]]  # the place of the first prompt among all, and the prompts int64[T]


@dataclass(frozen=True)
class Live:
    """One live setting of a pair's draft model: its proposal, a rule, a shape's name and a temperature."""

    drafter: str
    rule: str
    shape: str
    temperature: float


def run(setting: Live, pair, prompts, *, new_tokens: int, seed: int) -> pd.DataFrame:
    """`tally` of one setting over a `models.prompts.PromptSet`, with the setting's columns. seed: of drafts and text;
    settings with other seeds are independent.
    """
    generation = joined(cluster.spread(_batch, batches(prompts.ids, ROWS), setting, pair, new_tokens, seed))
    return tally(generation, prompts.names, prompts.kinds).assign(
        pair=pair.name, **vars(setting), budget=named(setting.shape).budget)


def _batch(batch: PromptBatch, setting: Live, pair, new_tokens: int, seed: int) -> Generation:
    drafter = make("model", pair, proposal=setting.drafter, temperature=setting.temperature or 1.0)
    return decode_batch(batch, pair.target, drafter, seed, shape=setting.shape, rule=setting.rule,
                        temperature=setting.temperature, max_new_tokens=new_tokens, eos_token_id=pair.eos_token_ids)


def decode(target, drafter, prompts: Sequence[Tensor], *, rows: int = ROWS, seed: int = 0, **settings) -> Generation:
    """`generate` over prompts int64[T] of any lengths, in batches of at most `rows`, each with draws of its own; the
    rounds' `row` counts over all prompts.
    """
    return joined(decode_batch(batch, target, drafter, seed, **settings) for batch in batches(prompts, rows))


def batches(prompts: Sequence[Tensor], rows: int) -> list[PromptBatch]:
    """Prompts with the place of the first one, at most `rows` together."""
    return [(first, tuple(prompts[first : first + rows])) for first in range(0, len(prompts), rows)]


def decode_batch(batch: PromptBatch, target, drafter, seed: int, **settings) -> Generation:
    """`generate` over one of `batches`, with draws that depend on its place and the seed alone."""
    first, prompts = batch
    ((padded, mask),) = in_batches(prompts, len(prompts))
    return generate(target, drafter, padded, attention_mask=mask, generator=cluster.seeded(seed, first), **settings)


def joined(parts: Iterable[Generation]) -> Generation:
    """The generations of consecutive batches as one."""
    rounds, written, calls = [], [], np.zeros(2, dtype=int)
    for part in parts:
        calls += part.target_calls, part.drafter_calls
        rounds += [replace(record, row=record.row + len(written)) for record in part.rounds]
        written += part.new_tokens
    return Generation(pad_sequence([torch.tensor(row) for row in written], batch_first=True), rounds, written,
                      *calls.tolist())


def tally(generation: Generation, names: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """One row for each prompt and stretch, as `acceptance.evaluate` has them for replayed rounds."""
    loops = [loop_start(row) for row in generation.new_tokens]
    rows, looped, drafted, accepted = np.array(
        [(record.row, record.position - 1 >= loops[record.row], record.drafted, record.accepted)
         for record in generation.rounds], dtype=np.int64).reshape(-1, 4).T
    return acceptance.tally(names, kinds, rows, looped, drafted=drafted, accepted=accepted)
