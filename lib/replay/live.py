"""Live decoding in the rows of replay, for what replay cannot give exactly, such as rules for sampled children."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.decoding.loop import generate, in_batches
from lib.decoding.records import Generation
from lib.drafters.registry import make
from lib.lab import cluster
from lib.models.prompts import PromptSet
from lib.replay import acceptance
from lib.trees import named

ROWS = 16  # prompts per batch


@dataclass(frozen=True)
class Live:
    """One live setting of a pair's draft model: its proposal, a rule, a shape's name and a temperature."""

    drafter: str
    rule: str
    shape: str
    temperature: float


def run(setting: Live, pair, prompts: PromptSet, *, new_tokens: int, seed: int) -> pd.DataFrame:
    """`tally` of one setting over prompts, with the setting's columns. seed: of drafts and text."""
    batches = [(first, prompts.select(range(first, min(first + ROWS, len(prompts.ids)))))
               for first in range(0, len(prompts.ids), ROWS)]
    parts = cluster.spread(_run_batch, batches, setting, pair, new_tokens, seed)
    return pd.concat(parts, ignore_index=True).assign(
        pair=pair.name, **vars(setting), budget=named(setting.shape).budget)


def _run_batch(batch: tuple[int, PromptSet], setting: Live, pair, new_tokens: int, seed: int) -> pd.DataFrame:
    """The rows of one batch, with draws that depend on the number of its first prompt and the seed alone."""
    first, prompts = batch
    drafter = make("model", pair, {"proposal": setting.drafter, "temperature": setting.temperature or 1.0})
    (tokens, mask), = in_batches(prompts.ids, ROWS)
    done = generate(pair.target, drafter, tokens, attention_mask=mask, shape=setting.shape, rule=setting.rule,
                    temperature=setting.temperature, max_new_tokens=new_tokens, eos_token_id=pair.eos_token_ids,
                    generator=cluster.seeded(seed, first))
    return tally(done, prompts.names, prompts.kinds)


def tally(generation: Generation, names: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """One row for each prompt, as `acceptance.tally_walk` has them for replayed rounds."""
    rounds = np.array([(record.row, record.drafted, record.accepted, record.draft_calls)
                       for record in generation.rounds], dtype=np.int64).reshape(-1, 4)
    rows, drafted, accepted, calls = rounds.T
    return acceptance.tally(names, kinds, rows, drafted=drafted, accepted=accepted, calls=calls)
