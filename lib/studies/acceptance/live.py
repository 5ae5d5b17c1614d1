"""Live decoding as rows of a table: for rules and drafters that replay cannot give exactly, and as its check."""

from dataclasses import dataclass
from typing import Sequence

import pandas as pd
import torch
from torch import Tensor

from lib import drafters
from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.decoding.records import Generation, Round
from lib.replay.loops import loop_start
from lib.trees import shapes


@dataclass(frozen=True)
class Live:
    """One live setting: a kind of drafter (see `drafters.DRAFTERS`), a rule, a shape's name and a temperature."""

    drafter: str
    rule: str
    shape: str
    temperature: float


# What samples its children needs a rule with residuals; top-k children are verified by naive sampling.
RULES_OF_PROPOSALS = {"top_k": "naive", "iid": "multi_step", "without_replacement": "without_replacement"}


def rules_grid(shape_names: Sequence[str], temperatures: Sequence[float]) -> list[Live]:
    """Every proposal of one language model under its rule, for each shape and temperature above 0."""
    return [
        Live(proposal, rule, shape, temperature)
        for shape in shape_names
        for temperature in temperatures
        if temperature
        for proposal, rule in RULES_OF_PROPOSALS.items()
    ]


def drafters_grid(shape_names: Sequence[str]) -> list[Live]:
    """The language model, look-up, merging and the two controls, for each shape, greedily."""
    return [
        Live(kind, "greedy", shape, 0.0)
        for shape in shape_names
        for kind in ("top_k", "lookup", "merged", "random", "oracle")
    ]


def make_drafter(
    setting: Live, pair, others: Sequence, prompts: Sequence[Tensor], continuations: Sequence[Sequence[int]], seed: int
):
    """The setting's drafter for a pair; `others` are further models to merge with its own, continuations what the
    oracle knows.
    """
    return drafters.make(
        setting.drafter,
        model=pair.draft_model,
        models=[pair.draft_model, *others],
        vocabulary=pair.vocabulary,
        temperature=setting.temperature or 1.0,
        prompts=prompts,
        continuations=continuations,
        generator=torch.Generator().manual_seed(seed),
    )


def decode(target, drafter, prompts: Sequence[Tensor], *, rows: int = 16, **settings) -> Generation:
    """`generate` over prompts int64[T] of any lengths, in batches of so many rows; the rounds' `row` counts over all
    prompts.
    """
    rounds: list[Round] = []
    written: list[list[int]] = []
    for padded, mask in in_batches(prompts, rows):
        done = generate(target, drafter, padded, attention_mask=mask, **settings)
        rounds += [Round(**{**vars(found), "row": found.row + len(written)}) for found in done.rounds]
        written += done.new_tokens
    return Generation(
        torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in written], batch_first=True), rounds, written
    )


def tally(done: Generation, names: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """One row a prompt and stretch, as `acceptance.tally` gives them for replayed rounds."""
    loops = [loop_start(row) for row in done.new_tokens]
    frame = pd.DataFrame(
        [
            {
                "prompt": names[found.row],
                "kind": kinds[found.row],
                "stretch": "loop" if found.position - 1 >= loops[found.row] else "before",
                "rounds": int(not found.cut),
                "drafted": found.drafted * (not found.cut),
                "accepted": found.accepted * (not found.cut),
                "cut": int(found.cut),
            }
            for found in done.rounds
        ]
    )
    return frame.groupby(["prompt", "kind", "stretch"], as_index=False).sum()


def run(
    setting: Live, pair, others: Sequence, asked, continuations: Sequence[Sequence[int]], *, new_tokens: int, seed: int
) -> pd.DataFrame:
    """`tally` of one setting over prompts (see `recording.Prompts`), with the setting's columns."""
    drafter = make_drafter(setting, pair, others, asked.ids, continuations, seed)
    done = decode(
        pair.target,
        drafter,
        asked.ids,
        shape=setting.shape,
        rule=setting.rule,
        temperature=setting.temperature,
        max_new_tokens=new_tokens,
        eos_token_id=pair.eos_token_ids,
        generator=torch.Generator().manual_seed(seed),
    )
    return tally(done, asked.names, asked.kinds).assign(
        pair=pair.name, **vars(setting), budget=shapes.parse(setting.shape).budget
    )
