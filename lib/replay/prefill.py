"""Prefill that texts with a common beginning share: the longest is forwarded, and the others' cache is cut from it.

Real-text starts of one prompt are such texts; prefilling each of them alone would be most of the cost of recording.
"""

from typing import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.registration import tree_forward
from lib.decoding.checks import token_set
from lib.models.cache import TreeCache
from lib.models.fused import fused
from lib.verify.draws import GeneratorDraws
from lib.verify.warping import warp

ALIKE = 0.8  # of the longest text's length; shorter ones are forwarded apart, since padding costs as much as text


def trunks(texts: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """The indices of the texts int64[T] that are no beginning of a longer one, and for each text the place of its trunk
    among them.
    """
    kept: list[int] = []
    place = [0] * len(texts)
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        text = texts[i]
        trunk_places = (at for at, trunk in enumerate(kept) if torch.equal(texts[trunk][: len(text)], text))
        place[i] = next(trunk_places, len(kept))
        if place[i] == len(kept):
            kept.append(i)
    return kept, place


def alike(lengths: Sequence[int]) -> list[slice]:
    """Consecutive groups of lengths that fall, in each of which the shortest has at least ALIKE of the longest."""
    starts = [0]
    for at, length in enumerate(lengths):
        if length < ALIKE * lengths[starts[-1]]:
            starts.append(at)
    return [slice(*bounds) for bounds in zip(starts, [*starts[1:], len(lengths)])]


def prefill(model, texts: Sequence[Tensor]) -> tuple[TreeCache, Tensor]:
    """A cache that holds each text int64[T], and the logits [B, V] after it; only trunks are forwarded."""
    kept, place = trunks(texts)
    lengths, place = torch.tensor([len(text) for text in texts]), torch.tensor(place)
    caches, after = [], []
    for group in alike(lengths[kept].tolist()):
        inside = ((place >= group.start) & (place < group.stop)).nonzero()[:, 0]
        tokens = pad_sequence([texts[i] for i in kept[group]], batch_first=True).to(model.device)
        last, column = torch.unique(lengths[inside] - 1, return_inverse=True)
        depth = torch.arange(tokens.shape[1], device=tokens.device)
        caches.append(TreeCache())
        out = tree_forward(model, tokens, depth, None, caches[-1], logits_to_keep=last.to(tokens.device))
        caches[-1].set_lengths(lengths[kept[group]])
        after.append((inside, out.logits[place[inside] - group.start, column]))
    caches[0].join(caches[1:])
    caches[0].select(place)
    caches[0].set_lengths(lengths)
    order = torch.cat([inside for inside, _ in after]).argsort()
    return caches[0], torch.cat([logits for _, logits in after])[order]


@torch.inference_mode()
def continuations(target, prompts: Sequence[Tensor], *, max_new_tokens: int, temperature: float = 0.0, rows: int = 32,
                  eos_token_id: int | Sequence[int] | None = None,
                  generator: torch.Generator | None = None) -> list[list[int]]:
    """The result of `decoding.continuations`, its oracle: the same tokens from the same draws, in the same batches."""
    eos = token_set(eos_token_id)
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
        sampled = [draws.categorical(row) for row in warp(logits, temperature)]
        for row, token in zip(alive, sampled):
            written[row].append(token)
        kept = [i for i, row in enumerate(alive) if len(written[row]) < limit and sampled[i] not in eos]
        if not kept:
            return written
        if len(kept) < len(alive):
            alive = [alive[i] for i in kept]
            cache.select(torch.tensor(kept))
        tokens = torch.tensor([[written[row][-1]] for row in alive], device=logits.device)
        logits = tree_forward(blocks, tokens, depth.to(tokens.device), itself, cache).logits[:, 0]
        cache.set_lengths(cache.lengths + 1)
