"""Live decoding, for what replay cannot give exactly: rules for sampled children, and drafters with a memory."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Iterable, Sequence

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
from lib.trees import shapes
from lib.verify.draft import PROPOSALS
from lib.verify.rules import simplest_rule

ROWS = 16  # prompts per batch
Batch = tuple[int, tuple[Tensor, ...]]  # the place of the first prompt among all, and the prompts int64[T]


@dataclass(frozen=True)
class Live:
    """One live setting of a pair's draft model: its proposal, a rule, a shape's name and a temperature."""

    drafter: str
    rule: str
    shape: str
    temperature: float


def sampled(pair, prompts, shape_names: Sequence[str], temperatures: Sequence[float], *, new_tokens: int,
            seed: int) -> pd.DataFrame:
    """The table `live`: each proposal of a pair's draft model under its simplest rule, for each shape and temperature
    above 0; no rows for a target alone. prompts: see `recording.Prompts`.
    """
    if pair.draft_model is None:
        return pd.DataFrame()
    grid = product(shape_names, filter(None, temperatures), PROPOSALS)
    frames = [run(Live(proposal, simplest_rule(proposal), shape, temperature), pair, prompts, new_tokens=new_tokens,
                  seed=seed + at) for at, (shape, temperature, proposal) in enumerate(grid)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def run(setting: Live, pair, prompts, *, new_tokens: int, seed: int) -> pd.DataFrame:
    """`tally` of one setting over prompts, with the setting's columns. seed: of drafts and text; settings with other
    seeds are independent.
    """
    done = joined(cluster.spread(_batch, batches(prompts.ids, ROWS), setting, pair, new_tokens, seed))
    return tally(done, prompts.names, prompts.kinds).assign(
        pair=pair.name, **vars(setting), budget=shapes.parse(setting.shape).budget)


def _batch(batch: Batch, setting: Live, pair, new_tokens: int, seed: int) -> Generation:
    drafter = make("model", pair, proposal=setting.drafter, temperature=setting.temperature or 1.0)
    return decode_batch(batch, pair.target, drafter, seed, shape=setting.shape, rule=setting.rule,
                        temperature=setting.temperature, max_new_tokens=new_tokens, eos_token_id=pair.eos_token_ids)


def decode(target, drafter, prompts: Sequence[Tensor], *, rows: int = ROWS, seed: int = 0, **settings) -> Generation:
    """`generate` over prompts int64[T] of any lengths, in batches of at most `rows`, each with draws of its own; the
    rounds' `row` counts over all prompts.
    """
    return joined(decode_batch(batch, target, drafter, seed, **settings) for batch in batches(prompts, rows))


def batches(prompts: Sequence[Tensor], rows: int) -> list[Batch]:
    """Prompts with the place of the first one, at most `rows` together."""
    return [(first, tuple(prompts[first : first + rows])) for first in range(0, len(prompts), rows)]


def decode_batch(batch: Batch, target, drafter, seed: int, **settings) -> Generation:
    """`generate` over one of `batches`, with draws that depend on its place and the seed alone."""
    first, prompts = batch
    ((padded, mask),) = in_batches(prompts, len(prompts))
    return generate(target, drafter, padded, attention_mask=mask, generator=cluster.seeded(seed, first), **settings)


def joined(parts: Iterable[Generation]) -> Generation:
    """The generations of consecutive batches as one."""
    rounds, written, calls = [], [], np.zeros(2, dtype=int)
    for done in parts:
        calls += done.target_calls, done.drafter_calls
        rounds += [replace(record, row=record.row + len(written)) for record in done.rounds]
        written += done.new_tokens
    return Generation(pad_sequence([torch.tensor(row) for row in written], batch_first=True), rounds, written,
                      *calls.tolist())


def tally(done: Generation, names: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """One row for each prompt and stretch, as `acceptance.evaluate` has them for replayed rounds."""
    loops = [loop_start(row) for row in done.new_tokens]
    rows, looped, drafted, accepted = np.array(
        [(each.row, each.position - 1 >= loops[each.row], each.drafted, each.accepted) for each in done.rounds],
        dtype=np.int64).reshape(-1, 4).T
    return acceptance.tally(names, kinds, rows, looped, drafted=drafted, accepted=accepted)
