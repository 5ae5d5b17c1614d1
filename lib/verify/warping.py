"""From logits to the distribution that drafting, verification and sampling all use."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NEGLIGIBLE = math.log(1e-30)


def warp(logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Probabilities [..., V] of logits [..., V] at a temperature, cut to the top k, then to the nucleus of mass p.

    Temperature 0 puts all mass on the best token, the first of equals. Tokens that tie with the k-th best stay. The
    nucleus is the smallest set of best tokens whose mass reaches p. Half-precision logits give float32; in float32 on
    a CPU, tokens less likely than 1e-30 times the best get probability 0. ValueError for settings out of range.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature is {temperature}; give 0 (greedy) or more")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; give 1 or more, or None to keep every token")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; give a share above 0 and up to 1, or None to keep every token")
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, best_token(logits)[..., None], 1.0)
    probs = torch.softmax(_without_negligible(logits / temperature), dim=-1)
    if top_k is not None and top_k < probs.shape[-1]:
        floor = probs.topk(top_k, dim=-1).values[..., -1:]
        probs = torch.where(probs >= floor, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if top_p is not None and top_p < 1:
        ordered, index = probs.sort(dim=-1, descending=True, stable=True)
        # A token stays while the mass before it is below p, so that at least one does.
        ordered = torch.where(ordered.cumsum(-1) - ordered < top_p, ordered, 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, index, ordered)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _without_negligible(scaled: Tensor) -> Tensor:
    """Logits [..., V] with minus infinity for tokens less likely than 1e-30 times the best, too rare for float32 sums.

    Many processors read numbers below the normal range ten times slower, and rules read the probabilities often.
    """
    if scaled.dtype != torch.float32 or scaled.device.type != "cpu" or not scaled.numel():
        return scaled
    least, most = scaled.aminmax()
    if not most - least > -NEGLIGIBLE:
        return scaled
    return F.threshold_(scaled - scaled.amax(-1, keepdim=True), NEGLIGIBLE, -math.inf)


def best_token(scores: Tensor) -> Tensor:
    """The index of the largest of scores [..., V], the first of equals, int64[...].

    On a CPU by numpy, whose argmax is vectorised; that of torch is not.
    """
    if scores.device.type != "cpu":
        return scores.argmax(-1)
    wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    return torch.from_numpy(np.asarray(wide.detach().numpy().argmax(-1)))
