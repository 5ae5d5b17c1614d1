"""How far a number format's text is from that of the widest one: both read the text that the widest format wrote."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.engines.own import Own
from lib.forward.passes import forward_pass
from lib.lab import stats
from lib.lab.chapter import Store
from lib.models.cache import TreeCache

PROMPTS, TOKENS = 12, 32  # texts that are read, and tokens of each


def measure(store: Store, widest: Own, others: Sequence[Own], prompts: Sequence[Tensor], texts: Sequence[Tensor],
            generator: np.random.Generator) -> None:
    """The missing rows of the table "quality": each format beside the widest one, on the first judging texts that it
    wrote; prompts int64[T], texts int64[N].
    """
    table = store.open("quality")
    done = set(table.frame()["backend"])
    for other in (other for other in others if other.name not in done):
        equal, divergence, tokens = np.array([
            distances(widest.pair.target, other.pair.target, prompt, text[:TOKENS])
            for prompt, text in zip(prompts[:PROMPTS], texts)]).T
        table.extend(pd.DataFrame([stats.ratio(equal, tokens, generator), stats.ratio(divergence, tokens, generator)])[
            stats.FIELDS].assign(backend=other.name, quantity=["equal favourites", "KL per token"]))


def distances(widest, other, prompt: Tensor, text: Tensor) -> tuple[int, float, int]:
    """Of a text: tokens whose most likely one is the same, the sum of KL(widest || other) in nats, and all tokens."""
    reference, logs = (log_probabilities(target, prompt, text).double() for target in (widest, other))
    equal = int((logs.argmax(-1) == reference.argmax(-1)).sum())
    return equal, float((reference.exp() * (reference - logs)).sum()), len(text)


@torch.inference_mode()
def log_probabilities(target, prompt: Tensor, tokens: Tensor) -> Tensor:
    """float32[N, V] for tokens int64[N] after a prompt int64[T], teacher-forced in a prefill and one block."""
    model, cache, ids = forward_pass(target), TreeCache(), torch.cat([prompt, tokens[:-1]])[None].to(target.device)
    depths = torch.arange(max(len(prompt), len(tokens)), device=target.device)
    parts = [model(ids[:, : len(prompt)], depths[: len(prompt)], None, cache, logits_to_keep=1).logits]
    cache.commit([list(range(len(prompt)))])
    if len(tokens) > 1:
        parts.append(model(ids[:, len(prompt) :], depths[: len(tokens) - 1], None, cache).logits)
    return torch.cat(parts, 1)[0].float().log_softmax(-1).cpu()
