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

PROMPTS, TOKENS = 8, 32  # texts that are read, and tokens of each


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
    """float32[N, V] of the bench's target for the first N tokens recorded after each of the first judging prompts."""
    target, logs = bench.backend.pair.target, []
    for row in bench.rows(JUDGING)[:PROMPTS]:
        tokens = recorded.trace.tokens[row, :TOKENS]
        tokens = torch.from_numpy(tokens[tokens >= 0]).long()
        ids = torch.cat([recorded.prompts[row], tokens[:-1]]).to(target.device)
        outputs = forward_pass(target)(ids[None], torch.arange(len(ids), device=target.device), None, TreeCache(),
                                       logits_to_keep=len(tokens))
        logs.append(outputs.logits[0].float().log_softmax(-1).cpu())
    return logs
