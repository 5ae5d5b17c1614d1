"""Prefill of a batch: each text beside texts of similar lengths, since padding costs as much as text on a CPU. The
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
    """A cache that holds B texts, the logits [B, V] after each, and hidden states [B, T, H] per layer, right-padded."""

    cache: TreeCache
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


def prefill(run: ForwardPass, texts: Sequence[Tensor], hidden_states: bool = False) -> Prefilled:
    """The texts int64[T], forwarded by `run`, groups of similar lengths one after another. ValueError for NaN."""
    # A state belongs to the end of one text, and takes no padding.
    least = 1 if takes_chains(run.model.config) else ALIKE
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    groups = [_read(run, [texts[i] for i in order[group]], hidden_states)
              for group in alike([len(texts[i]) for i in order], least)]
    cache, back = groups[0].cache, torch.tensor(order).argsort()
    cache.join([group.cache for group in groups[1:]])
    if order == sorted(order) and len(groups) == 1:
        return groups[0]
    cache.select(back)
    layers = tuple(pad_sequence([row for rows in layer for row in rows], batch_first=True)[back]
                   for layer in zip(*(group.hidden_states for group in groups)))
    return Prefilled(cache, torch.cat([group.logits for group in groups])[back], layers)


def _read(run: ForwardPass, texts: Sequence[Tensor], hidden_states: bool) -> Prefilled:
    """Texts side by side, in one block or several."""
    lengths, tokens = torch.tensor(list(map(len, texts))), pad_sequence(texts, batch_first=True).to(run.device)
    last, column = torch.unique(lengths - 1, return_inverse=True)
    size = max(1, BLOCK // len(tokens)) if run.reads_blocks else tokens.shape[1]
    cache, logits, states = TreeCache(), [], []
    for start in range(0, tokens.shape[1], size):
        block = tokens[:, start : start + size]
        depth, end = torch.arange(block.shape[1], device=tokens.device), start + block.shape[1]
        inside = last[(last >= start) & (last < end)] - start
        out = run(block, depth, None, cache, logits_to_keep=inside.to(tokens.device),
                  output_hidden_states=hidden_states)
        cache.set_lengths(torch.full([len(tokens)], end))
        logits.append(out.logits)
        states.append(out.hidden_states if hidden_states else ())
    cache.set_lengths(lengths)
    after = torch.cat(logits, dim=1)[torch.arange(len(texts)), column]
    if after.isnan().any():
        raise nan_error(run.model, "after the prompt")
    return Prefilled(cache, after, tuple(torch.cat(layer, dim=1) for layer in zip(*states)))


def nan_error(model, moment: str) -> ValueError:
    """The error for a model that gives NaN at a moment, such as "in round 3"."""
    name = model.name_or_path or type(model).__name__
    return ValueError(f"model {name!r} gives NaN {moment}, so its weights hold NaN or overflow in {model.dtype}; load "
                      "other weights, or another dtype")


def alike(lengths: Sequence[int], least: float = ALIKE) -> list[slice]:
    """Consecutive groups of lengths that fall, in each of which the shortest has at least this share of the longest."""
    starts = [0]
    for at, length in enumerate(lengths):
        if length < least * lengths[starts[-1]]:
            starts.append(at)
    return [slice(*bounds) for bounds in zip(starts, [*starts[1:], len(lengths)])]
