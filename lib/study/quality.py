"""How far a number format's text is from that of the widest one: both read the text that the widest format wrote."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lib.engines.own import Own
from lib.forward.passes import forward_pass
from lib.lab import stats
from lib.lab.chapter import Store
from lib.lab.stats import Estimate
from lib.models.cache import TreeCache

PROMPTS, TOKENS = 12, 32  # texts that are read, and tokens of each


def measure(store: Store, widest: Own, others: Sequence[Own], prompts: Sequence[Tensor], texts: Sequence[Tensor],
            generator: np.random.Generator) -> None:
    """The missing rows of the table "quality": each format beside the widest one, on the first judging texts that it
    wrote; prompts int64[T], texts int64[N].
    """
    table = store.open("quality")
    done = {backend for backend, _ in table.keys()}
    for other in (other for other in others if other.name not in done):
        estimates = quality(widest.pair.target, other.pair.target, prompts[:PROMPTS],
                            [text[:TOKENS] for text in texts[:PROMPTS]], generator)
        table.extend([dict(backend=other.name, quantity=name, value=estimate.value, low=estimate.low,
                           high=estimate.high, n=estimate.n) for name, estimate in estimates.items()])


def quality(widest, other, prompts: Sequence[Tensor], texts: Sequence[Tensor],
            generator: np.random.Generator) -> dict[str, Estimate]:
    """Per token of the texts: the share whose most likely token is the same, and KL(widest || other) in nats."""
    rows = []
    for prompt, text in zip(prompts, texts):
        reference, logs = (log_probabilities(target, prompt, text).double() for target in (widest, other))
        equal = int((logs.argmax(-1) == reference.argmax(-1)).sum())
        rows.append((equal, float((reference.exp() * (reference - logs)).sum()), len(text)))
    equal, divergence, tokens = np.array(rows, dtype=float).T
    return {"equal favourites": stats.ratio(equal, tokens, generator),
            "KL per token": stats.ratio(divergence, tokens, generator)}


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
