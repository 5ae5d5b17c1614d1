"""How far a number format's text is from that of the widest one: both read the text that the widest format wrote."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from lib.lab import stats
from lib.replay.recording import teacher_forced
from lib.replay.simulated import Recorded
from lib.study.bench import JUDGING, Bench

PROMPTS, TOKENS = 8, 32  # texts that are read, and tokens of each after its first, the root


def measure(bench: Bench, recorded: Recorded, reference: Sequence[Tensor]) -> None:
    """The missing rows of the table "quality" of the bench's number format. reference: the `log_probabilities` of the
    widest format.
    """
    if len(bench.rows_of("quality")):
        return
    equal, divergence = [], []  # by text: tokens whose most likely one is the same, and the sum of KL(widest || format)
    for widest, logs in zip(reference, log_probabilities(bench, recorded)):
        equal.append(int((logs.argmax(-1) == widest.argmax(-1)).sum()))
        divergence.append(float((widest.double().exp() * (widest.double() - logs.double())).sum()))
    tokens, generator = list(map(len, reference)), bench.generator("quality", bench.backend.name)
    estimates = pd.DataFrame([stats.ratio(sums, tokens, generator) for sums in (equal, divergence)])[stats.FIELDS]
    bench.store.open("quality").add(
        estimates.assign(backend=bench.backend.name, quantity=["equal favourites", "KL per token"]))


@torch.inference_mode()
def log_probabilities(bench: Bench, recorded: Recorded) -> list[Tensor]:
    """[N, V] of the bench's target for the first N tokens after the root of each of the first judging texts."""
    rows = bench.rows(JUDGING)[:PROMPTS]
    texts = [tokens[tokens >= 0].tolist() for tokens in recorded.trace.tokens[rows, : 1 + TOKENS]]
    logits, _ = teacher_forced(bench.backend.pair.target, [recorded.prompts[row] for row in rows], texts)
    return list(logits.log_softmax(-1).cpu().split([len(text) - 1 for text in texts]))
