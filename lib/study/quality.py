"""How far a number format's text is from that of the widest one: both read the text that the widest format wrote."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from lib.forward.passes import forward_pass
from lib.lab import stats
from lib.models.cache import TreeCache
from lib.replay.simulated import Recorded
from lib.study.bench import JUDGING, Bench

PROMPTS, TOKENS = 12, 32  # texts that are read, and tokens of each


def judging_texts(bench: Bench, recorded: Recorded) -> list[tuple[Tensor, Tensor]]:
    """The first judging prompts int64[T], and the beginning int64[N] of what the reference wrote after each."""
    rows = bench.rows(JUDGING)[:PROMPTS]
    tokens = [recorded.trace.tokens[row, :TOKENS] for row in rows]
    return [(recorded.prompts[row], torch.from_numpy(line[line >= 0]).long()) for row, line in zip(rows, tokens)]


def measure(bench: Bench, texts: Sequence[tuple[Tensor, Tensor]], reference: Sequence[Tensor]) -> None:
    """The missing rows of the table "quality" of the bench's number format. reference: float32[N, V] of each text, the
    `log_probabilities` of the widest format.
    """
    if len(bench.rows_of("quality")):
        return
    equal, divergence = [], []  # by text: tokens whose most likely one is the same, and the sum of KL(widest || format)
    for widest, logs in zip(reference, log_probabilities(bench.backend.pair.target, texts)):
        equal.append(int((logs.argmax(-1) == widest.argmax(-1)).sum()))
        divergence.append(float((widest.double().exp() * (widest.double() - logs.double())).sum()))
    tokens, generator = [len(text) for _, text in texts], bench.generator("quality", bench.backend.name)
    estimates = pd.DataFrame([stats.ratio(sums, tokens, generator) for sums in (equal, divergence)])[stats.FIELDS]
    bench.store.open("quality").add(
        estimates.assign(backend=bench.backend.name, quantity=["equal favourites", "KL per token"]))


@torch.inference_mode()
def log_probabilities(target, texts: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """float32[N, V] for the tokens int64[N] after each prompt int64[T], teacher-forced."""
    model, logs = forward_pass(target), []
    for prompt, tokens in texts:
        ids = torch.cat([prompt, tokens[:-1]]).to(target.device)
        depths = torch.arange(len(ids), device=target.device)
        outputs = model(ids[None], depths, None, TreeCache(), logits_to_keep=len(tokens))
        logs.append(outputs.logits[0].float().log_softmax(-1).cpu())
    return logs
