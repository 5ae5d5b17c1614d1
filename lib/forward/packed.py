"""Linear layers for few rows: in C++ (`lib.kernels.products`) over the weights as they are, else over packed weights.

PyTorch's own linear layer packs weights in each call of few rows, which takes longer than the product itself.
"""

from typing import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.kernels import products
from lib.kernels.panels import Panels, of_16_bits

Linear = Callable[[Tensor], Tensor]  # [..., in] -> [..., out]


class Product:
    """x -> x W^T + b with weight [out, in] for few rows, by the fastest kernel for this processor and dtype.

    panels: the weight in panels of 16 bits, where it is such numbers and the copy does not fill the memory.
    copied_bytes: of weights that are held a second time.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        bias = None if bias is None else bias.detach()
        self.panels, self.copied_bytes = None, 0
        if products.weights_refusal([weight]) is None:
            self.panels = None if products.fills_the_memory([weight], each=2) else of_16_bits(weight)
            self.copied_bytes = 0 if self.panels is None else self.panels.nbytes
            self.run = products.linear(weight, bias, self.panels)
        elif can_pack(weight):
            held, self.copied_bytes = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None), weight.nbytes
            self.run = lambda x: torch.ops.mkldnn._linear_pointwise(x, held, bias, "none", [], "")
        else:
            self.run = lambda x: F.linear(x, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x)


def joined(layers: Sequence[nn.Module]) -> Linear:
    """Layers over the same input as one layer that concatenates their outputs [..., out].

    Plain linear layers become one product over a copy of their weights; others (quantised ones) are called in turn.
    """
    if not all(type(layer) is nn.Linear for layer in layers):
        return layers[0] if len(layers) == 1 else lambda x: torch.cat([layer(x) for layer in layers], dim=-1)
    if len(layers) == 1:
        return Product(layers[0].weight.detach(), layers[0].bias)
    biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
    bias = None if all(layer.bias is None for layer in layers) else torch.cat(biases).detach()
    both = Product(torch.cat([layer.weight.detach() for layer in layers]), bias)
    both.copied_bytes = max(both.copied_bytes, sum(layer.weight.nbytes for layer in layers))
    return both


def pack(module: nn.Module) -> nn.Module:
    """Makes the linear layers of a module run packed where they can, until the module is moved or trained."""
    for layer in module.modules():
        if type(layer) is nn.Linear and (can_pack(layer.weight) or products.weights_refusal([layer.weight]) is None):
            layer.forward = _PackedForward(layer)
    return module


def panels_of(layer: nn.Linear) -> Panels | None:
    """The panels of 16 bits that `pack` made of a layer's present weight; None where there are none."""
    forward = vars(layer).get("forward")
    return forward.product.panels if isinstance(forward, _PackedForward) and forward.is_current() else None


def state_of(weight: Tensor) -> tuple:
    """What changes whenever a weight does: its place, its dtype, and how often it was written to."""
    return weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version


def weights_of(module: nn.Module) -> tuple:
    """The state of all parameters and buffers of a module."""
    return tuple(map(state_of, (*module.parameters(), *module.buffers())))


class _PackedForward:
    """A linear layer's forward over its packed weight; the layer's own with gradients, or once its weight changed."""

    def __init__(self, layer: nn.Linear):
        self.layer, self.made_of = layer, state_of(layer.weight)
        self.product = Product(layer.weight.detach(), layer.bias)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.is_current():
            return F.linear(x, self.layer.weight, self.layer.bias)
        return self.product(x)

    def is_current(self) -> bool:
        """Whether the layer's weight is the one that was packed."""
        return self.made_of == state_of(self.layer.weight)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN, through the operators that torch's own compiler uses, takes such weights here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    has_bfloat16 = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or has_bfloat16
