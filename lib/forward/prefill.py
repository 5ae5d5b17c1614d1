"""Prefill of a batch of texts: beside texts of similar lengths, and once where one text begins another.

Padding costs as much as text on a CPU; and the starts of rounds in one text are many texts with a common beginning. The
kernels read long texts in blocks whose numbers stay in the processor's cache.
"""

from dataclasses import dataclass
from typing import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.attention.registration import takes_chains
from lib.forward.passes import ForwardPass
from lib.models.cache import TreeCache

ALIKE = 0.8  # of the longest text's length; shorter ones are forwarded apart
BLOCK = 512  # tokens of a block of all texts


@dataclass(frozen=True)
class Prefilled:
    """A cache that holds B texts, and the model's outputs of them.

    logits: [B, V], after each text. hidden_states: [B, T, H] per layer, right-padded, where they were wanted.
    """

    cache: TreeCache
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


def prefill(run: ForwardPass, texts: Sequence[Tensor], hidden_states: bool = False) -> Prefilled:
    """The texts int64[T], forwarded by `run`; of texts that begin a longer one, only that one is."""
    apart = takes_chains(run.model.config)  # a state belongs to the end of one text, and takes no padding
    longest, place = trunks(texts, apart)
    lengths, place = torch.tensor([len(text) for text in texts]), torch.tensor(place)
    caches, after, states = [], [], []
    for group in alike(lengths[longest].tolist(), 1 if apart else ALIKE):
        inside = ((place >= group.start) & (place < group.stop)).nonzero()[:, 0]
        tokens = pad_sequence([texts[i] for i in longest[group]], batch_first=True).to(run.device)
        last, column = torch.unique(lengths[inside] - 1, return_inverse=True)
        caches.append(TreeCache())
        logits, own = read(run, tokens, caches[-1], last, hidden_states)
        caches[-1].set_lengths(lengths[longest[group]])
        after.append((inside, logits[place[inside] - group.start, column]))
        states.append(own)
    cache, in_order = caches[0], torch.equal(place, torch.arange(len(longest)))
    cache.join(caches[1:])
    if not in_order:
        cache.select(place)
    cache.set_lengths(lengths)
    order = torch.cat([inside for inside, _ in after]).argsort()
    layers = tuple(parts[0] if in_order and len(parts) == 1 else
                   pad_sequence([row for part in parts for row in part], batch_first=True)[place]
                   for parts in zip(*states))
    return Prefilled(cache, torch.cat([logits for _, logits in after])[order], layers)


def read(run: ForwardPass, tokens: Tensor, cache: TreeCache, keep: Tensor,
         hidden_states: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Fills an empty cache with tokens int64[B, T]: logits [B, K, V] after the ascending places keep int64[K], and the
    hidden states [B, T, H] per layer where they are wanted.
    """
    size = max(1, BLOCK // len(tokens)) if run.reads_blocks else tokens.shape[1]
    logits, states = [], []
    for start in range(0, tokens.shape[1], size):
        block = tokens[:, start : start + size]
        depth, end = torch.arange(block.shape[1], device=tokens.device), start + block.shape[1]
        inside = keep[(keep >= start) & (keep < end)] - start
        out = run(block, depth, None, cache, logits_to_keep=inside.to(tokens.device),
                  **({"output_hidden_states": True} if hidden_states else {}))
        cache.set_lengths(torch.full([len(tokens)], end))
        logits.append(out.logits)
        states.append(out.hidden_states if hidden_states else ())
    return torch.cat(logits, dim=1), tuple(torch.cat(layer, dim=1) for layer in zip(*states))


def trunks(texts: Sequence[Tensor], apart: bool = False) -> tuple[list[int], list[int]]:
    """The indices of the texts int64[T] that are no beginning of a longer one, and for each text the place of its trunk
    among them. apart: whether each text is its own trunk.
    """
    longest: list[int] = []
    place = [0] * len(texts)
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        text = texts[i]
        trunk_places = (at for at, trunk in enumerate(longest) if torch.equal(texts[trunk][: len(text)], text))
        place[i] = len(longest) if apart else next(trunk_places, len(longest))
        if place[i] == len(longest):
            longest.append(i)
    return longest, place


def alike(lengths: Sequence[int], least: float = ALIKE) -> list[slice]:
    """Consecutive groups of lengths that fall, in each of which the shortest has at least this share of the longest."""
    starts = [0]
    for at, length in enumerate(lengths):
        if length < least * lengths[starts[-1]]:
            starts.append(at)
    return [slice(*bounds) for bounds in zip(starts, [*starts[1:], len(lengths)])]
