"""Live decoding as rows of the same table as replay: for rules and drafters that replay cannot give exactly."""

from typing import Sequence

import pandas as pd
import torch
from torch import Tensor

from lib.decoding import Generation, Round, generate
from lib.trace import loop_start


def decode(target, drafter, prompts: Sequence[Tensor], *, rows: int = 16, **settings) -> Generation:
    """`generate` over prompts int64[T] of any lengths, in batches of so many rows; the rounds' `row` counts over all prompts."""
    rounds: list[Round] = []
    written: list[list[int]] = []
    for first in range(0, len(prompts), rows):
        batch = list(prompts[first : first + rows])
        padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        mask = torch.arange(padded.shape[1])[None] < torch.tensor([len(prompt) for prompt in batch])[:, None]
        done = generate(target, drafter, padded, attention_mask=mask, **settings)
        rounds += [Round(**{**vars(found), "row": found.row + first}) for found in done.rounds]
        written += done.new_tokens
    return Generation(torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in written], batch_first=True), rounds, written)


def tally(done: Generation, names: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """One row a prompt and stretch, as `acceptance.tally` gives them for replayed rounds."""
    loops = [loop_start(row) for row in done.new_tokens]
    frame = pd.DataFrame([{"prompt": names[found.row], "kind": kinds[found.row],
                           "stretch": "loop" if found.position - 1 >= loops[found.row] else "before",
                           "rounds": int(not found.cut), "drafted": found.drafted * (not found.cut),
                           "accepted": found.accepted * (not found.cut), "cut": int(found.cut)} for found in done.rounds])
    return frame.groupby(["prompt", "kind", "stretch"], as_index=False).sum()
