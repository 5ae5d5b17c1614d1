"""Drafters that begin inside known texts, many rounds at once: what replay of grown trees drafts from."""

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib.drafters.language_model import LanguageModelDrafter

Begin = Callable[[list[int], list[int], list[int]], object]


def beginnings(drafter, texts: Sequence[Tensor]) -> Begin:
    """(rows, lengths, roots) -> a drafter whose row i goes on behind the first lengths[i] tokens of texts[rows[i]]
    int64[T], where roots[i] comes next; a text may be named many times, and `drafter` stays as it is.

    A language model prefills every text once. A drafter that reads the target's hidden states gets them from one
    forward of its target over each text, and starts anew behind every prefix.
    """
    return (_anew if getattr(drafter, "wants_hidden_states", False) else _forked)(drafter, texts)


def _forked(drafter: LanguageModelDrafter, texts: Sequence[Tensor]) -> Begin:
    prefilled = copy.copy(drafter)
    prefilled.start(list(texts))

    @torch.no_grad()
    def begin(rows: list[int], lengths: list[int], roots: list[int]) -> LanguageModelDrafter:
        begun = copy.copy(prefilled)
        begun.cache = copy.deepcopy(prefilled.cache)
        begun.cache.select(torch.tensor(rows))
        begun.cache.crop(torch.tensor(lengths))
        begun.tails = [[root] for root in roots]
        return begun

    return begin


@torch.no_grad()
def _anew(drafter, texts: Sequence[Tensor]) -> Begin:
    device = drafter.target.device
    hidden = [drafter.target(text[None, :-1].to(device), output_hidden_states=True, logits_to_keep=1).hidden_states
              for text in texts]

    @torch.no_grad()
    def begin(rows: list[int], lengths: list[int], roots: list[int]):
        begun = copy.copy(drafter)
        begun.start([texts[row][:length] for row, length in zip(rows, lengths)])
        layers = [pad_sequence([hidden[row][layer][0, :length] for row, length in zip(rows, lengths)], batch_first=True)
                  for layer in range(len(hidden[0]))]
        begun.commit([[] for _ in rows], roots, SimpleNamespace(hidden_states=layers))
        return begun

    return begin
