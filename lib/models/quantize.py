"""Weights in int8, one byte each."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NONE, INT8 = "none", "int8"
KINDS = (NONE, INT8)
LARGEST = 127  # of int8, symmetric


class Int8Linear(nn.Module):
    """A linear layer with weight int8[out, in] and a scale[out]: y = x (q s)^T + b; activations keep their dtype.

    Where its model runs natively, blocks of few rows read the weights as they are (`lib/kernels/paired_rows.h`).
    Elsewhere PyTorch's kernel serves bfloat16 on a CPU; for other dtypes each call converts the weight, which saves
    memory and no time.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        quantised, scale = rounded(linear.weight)
        self.register_buffer("weight", quantised)
        self.register_buffer("scale", scale.to(linear.weight.dtype))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the dtype of x."""
        if x.dtype == torch.bfloat16 and not x.is_cuda:
            y = torch._weight_int8pack_mm(x.reshape(-1, x.shape[-1]), self.weight, self.scale)
            y = y.view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8[out, in] and float32 (float64 for float64) scale[out] whose product is within half a scale of the weight."""
    wide = weight.detach() if weight.dtype == torch.float64 else weight.detach().float()
    scale = (wide.abs().amax(1) / LARGEST).clamp_min(torch.finfo(wide.dtype).tiny)
    return (wide / scale[:, None]).round().to(torch.int8), scale


def quantize_int8(model) -> None:
    """Replaces all linear layers by int8 layers, except the output layer, which may share the embedding's weight."""
    output = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child is not output:
                setattr(parent, name, Int8Linear(child))
