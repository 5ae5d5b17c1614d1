"""The one place where logits become the distribution that is drafted against, verified against and sampled from."""

import torch
from torch import Tensor


def warp(logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Probabilities [..., V] of logits [..., V]: divided by temperature, cut to the top k, then to the nucleus of mass p.

    Temperature 0 puts all mass on the best token, the first of equals. Half-precision logits give float32.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    probs = torch.softmax(logits / temperature, dim=-1)
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
