"""Texts that begin alike share one prefill: the longest is forwarded, and the others' cache is cut from it.

Real-text starts of one prompt are such texts, and prefilling each anew is most of what recording them costs.
"""

from typing import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.operator import tree_forward
from lib.models.cache import TreeCache
from lib.models.fused import fused
from lib.verify.draws import GeneratorDraws
from lib.verify.warping import warp


def trunks(texts: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """The texts int64[T] that no longer one begins with, as indices; and for each text its place among them."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    kept: list[int] = []
    place = [0] * len(texts)
    for i in order:
        text = texts[i]
        alike = (at for at, trunk in enumerate(kept) if torch.equal(texts[trunk][: len(text)], text))
        place[i] = next(alike, len(kept))
        if place[i] == len(kept):
            kept.append(i)
    return kept, place


def prefill(model, texts: Sequence[Tensor]) -> tuple[TreeCache, Tensor]:
    """A cache that holds each text int64[T], and the logits [B, V] behind it; trunks alone are forwarded."""
    kept, place = trunks(texts)
    lengths = torch.tensor([len(text) for text in texts])
    tokens = pad_sequence([texts[i] for i in kept], batch_first=True).to(model.device)
    last, where = torch.unique(lengths - 1, return_inverse=True)
    cache = TreeCache()
    depth = torch.arange(tokens.shape[1], device=tokens.device)
    out = tree_forward(model, tokens, depth, None, cache, logits_to_keep=last.to(tokens.device))
    cache.set_lengths(lengths[kept])
    cache.select(torch.tensor(place))
    cache.set_lengths(lengths)
    return cache, out.logits[torch.tensor(place), where]


@torch.inference_mode()
def continuations(
    target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    rows: int = 32,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """What `decoding.continuations` gives, its oracle: the same tokens from the same draws, in the same batches."""
    eos = frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id or ())
    written: list[list[int]] = []
    for first in range(0, len(prompts), rows):
        batch = prompts[first : first + rows]
        written += _continue(target, batch, max_new_tokens, temperature, eos, GeneratorDraws(generator))
    return written


def _continue(target, prompts, limit: int, temperature: float, eos: frozenset[int], draws) -> list[list[int]]:
    written: list[list[int]] = [[] for _ in prompts]
    if not limit:
        return written
    alive = list(range(len(prompts)))
    cache, logits = prefill(target, prompts)
    itself, depth = torch.ones(1, 1, dtype=torch.bool, device=logits.device), torch.zeros(1, dtype=torch.long)
    blocks = fused(target)
    while True:
        said = [draws.categorical(row) for row in warp(logits, temperature)]
        for row, token in zip(alive, said):
            written[row].append(token)
        kept = [i for i, row in enumerate(alive) if len(written[row]) < limit and said[i] not in eos]
        if not kept:
            return written
        if len(kept) < len(alive):
            alive = [alive[i] for i in kept]
            cache.select(torch.tensor(kept))
        tokens = torch.tensor([[written[row][-1]] for row in alive], device=logits.device)
        logits = tree_forward(blocks, tokens, depth.to(tokens.device), itself, cache).logits[:, 0]
        cache.set_lengths(cache.lengths + 1)
