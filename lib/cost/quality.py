"""How far a model's text in one number format is from that in another: the wider one writes greedily, and the other
reads the same text, teacher-forced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.cost.recommendation import Interval
from lib.cost.ways import Deadline
from lib.decoding import loop
from lib.forward.passes import forward_pass
from lib.lab import stats
from lib.models.cache import TreeCache

PROMPTS, TOKENS, AT_ONCE = 12, 32, 4  # prompts that are read, tokens of each, and prompts that are continued together


@dataclass(frozen=True)
class Written:
    """What a format wrote after prompts int64[T]: tokens int64[N] each, and its log-probabilities float32[N, V]."""

    prompts: Sequence[Tensor]
    tokens: Sequence[Tensor]
    logs: Sequence[Tensor]


def written(pair, prompts: Sequence[Tensor], deadline: Deadline) -> Written:
    """Greedy continuations of prompts int64[T], until the time is over, with their log-probabilities."""
    texts, logs = [], []
    for first in range(0, len(prompts), AT_ONCE):
        chunk = prompts[first : first + AT_ONCE]
        done = loop.continuations(pair.target, chunk, max_new_tokens=TOKENS, eos_token_id=pair.eos_token_ids)
        texts += [torch.tensor(tokens) for tokens in done]
        logs += [log_probabilities(pair.target, *text) for text in zip(chunk, texts[first:])]
        if deadline.over():
            break
    return Written(prompts[: len(texts)], texts, logs)


@torch.inference_mode()
def log_probabilities(target, prompt: Tensor, tokens: Tensor) -> Tensor:
    """float32[N, V] for tokens int64[N] after a prompt int64[T], teacher-forced in a prefill and one block."""
    model, cache, ids = forward_pass(target), TreeCache(), torch.cat([prompt, tokens[:-1]])[None].to(target.device)
    places = torch.arange(max(len(prompt), len(tokens)), device=target.device)
    parts = [model(ids[:, : len(prompt)], places[: len(prompt)], None, cache, logits_to_keep=1).logits]
    cache.commit([list(range(len(prompt)))])
    if len(tokens) > 1:
        parts.append(model(ids[:, len(prompt) :], places[: len(tokens) - 1], None, cache).logits)
    return torch.cat(parts, 1)[0].float().log_softmax(-1).cpu()


def quality(base: Written, pair, rng: np.random.Generator, deadline: Deadline) -> dict[str, object]:
    """The fields of `OtherFormat` that compare a pair's target with the format that wrote the text: agreement of the
    most likely tokens; divergence, the mean of KL(writer || target) in nats per token; judged, the number of prompts.
    """
    rows = []
    for prompt, tokens, theirs in zip(base.prompts, base.tokens, base.logs):
        logs = log_probabilities(pair.target, prompt, tokens)
        apart = (theirs.double().exp() * (theirs.double() - logs.double())).sum(-1)
        rows.append((int((logs.argmax(-1) == theirs.argmax(-1)).sum()), float(apart.sum()), len(tokens)))
        if deadline.over():
            break
    same, apart, counts = np.array(rows, dtype=float).T
    means = [stats.ratio(values, counts, rng) for values in (same, apart)]
    agreement, divergence = (Interval(mean.value, mean.low, mean.high) for mean in means)
    return dict(agreement=agreement, divergence=divergence, judged=len(rows))
