"""Linear layers for few rows: in C++ (`lib.kernels.products`) over the weights as they are, else over packed weights.

PyTorch's own linear layer packs weights in each call of few rows, which takes longer than the product itself.
"""

from typing import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.kernels import products

Linear = Callable[[Tensor], Tensor]  # [..., in] -> [..., out]


def joined(layers: Sequence[nn.Module]) -> Linear:
    """Layers over the same input as one layer that concatenates their outputs [..., out].

    Plain linear layers become one product over a copy of their weights; others (quantised ones) are called in turn.
    """
    if not all(type(layer) is nn.Linear for layer in layers):
        return layers[0] if len(layers) == 1 else lambda x: torch.cat([layer(x) for layer in layers], dim=-1)
    weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
    return packed(weight.detach(), _bias(layers))


def joined_bytes(layers: Sequence[nn.Module]) -> int:
    """Bytes of the copy that `joined` makes of these layers' weights."""
    plain = all(type(layer) is nn.Linear for layer in layers)
    copied = plain and (len(layers) > 1 or copies(layers[0].weight))
    return sum(layer.weight.nbytes for layer in layers) if copied else 0


def copies(weight: Tensor) -> bool:
    """Whether `packed` holds a copy of the weight."""
    return products.weights_refusal([weight]) is not None and can_pack(weight)


def packed(weight: Tensor, bias: Tensor | None) -> Linear:
    """x -> x W^T + b with weight [out, in], by the fastest kernel for this processor and dtype."""
    if products.weights_refusal([weight]) is None:
        return products.linear(weight, bias)
    if not can_pack(weight):
        return lambda x: F.linear(x, weight, bias)
    held = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    run = torch.ops.mkldnn._linear_pointwise
    return lambda x: run(x, held, bias, "none", [], "")


def pack(module: nn.Module) -> nn.Module:
    """Makes the linear layers of a module run packed where they can, until the module is moved or trained."""
    for layer in module.modules():
        if type(layer) is nn.Linear and (can_pack(layer.weight) or products.weights_refusal([layer.weight]) is None):
            layer.forward = _Packed(layer)
    return module


def packed_bytes(module: nn.Module) -> int:
    """Bytes of the copies that `pack` made."""
    return sum(layer.weight.nbytes for layer in module.modules()
               if isinstance(vars(layer).get("forward"), _Packed) and copies(layer.weight))


class _Packed:
    """A linear layer's forward over its packed weight; the layer's own with gradients, or once its weight changed."""

    def __init__(self, layer: nn.Linear):
        self.layer, self.made_of = layer, self._weight(layer)
        self.run = packed(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or self.made_of != self._weight(self.layer):
            return F.linear(x, self.layer.weight, self.layer.bias)
        return self.run(x)

    @staticmethod
    def _weight(layer: nn.Linear) -> tuple:
        weight = layer.weight
        return weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN, through the operators that torch's own compiler uses, takes such weights here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    has_bfloat16 = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or has_bfloat16


def _bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
    return torch.cat([bias.detach() for bias in biases])
