"""Attention over two disjoint sets of keys, as one."""

import torch
from torch import Tensor


def merge(output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from the attention over each.

    outputs [..., m, d], lse [..., m]; an empty set has lse -inf. In float32 at least, whatever the outputs' dtype:
    o = (e^la oa + e^lb ob) / (e^la + e^lb). Two empty sets give zeros and -inf, not NaN.
    """
    top = torch.maximum(lse_a, lse_b).clamp_min(torch.finfo(lse_a.dtype).min)
    weight_a, weight_b = (lse_a - top).exp()[..., None], (lse_b - top).exp()[..., None]
    total = weight_a + weight_b
    parts = [weight * output.to(total.dtype).masked_fill(weight == 0, 0) for weight, output in
             ((weight_a, output_a), (weight_b, output_b))]
    smallest = torch.finfo(total.dtype).tiny
    return (parts[0] + parts[1]) / total.clamp_min(smallest), torch.logaddexp(lse_a, lse_b)
