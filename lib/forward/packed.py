"""Linear layers for few rows in C++ (`lib.kernels.products`), over the weights as they are or panels of them.

PyTorch's own linear layer packs weights in each call of few rows, which takes longer than the product itself.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.kernels import products
from lib.kernels.panels import Panels, of_16_bits

def pack(module: nn.Module) -> nn.Module:
    """Makes the linear layers of a module run packed where they can, until the module is moved or trained."""
    for layer in module.modules():
        if type(layer) is nn.Linear and products.weights_refusal([layer.weight]) is None:
            layer.forward = _PackedForward(layer)
    return module


def panels_of(layer: nn.Linear) -> Panels | None:
    """The panels of 16 bits that `pack` made of a layer's present weight; None where there are none."""
    forward = vars(layer).get("forward")
    return forward.panels if isinstance(forward, _PackedForward) and forward.is_current() else None


def state_of(weight: Tensor) -> tuple:
    """What changes whenever a weight does: its place, its dtype, and how often it was written to."""
    return weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version


def weights_of(module: nn.Module) -> tuple:
    """The state of all parameters and buffers of a module."""
    return tuple(map(state_of, (*module.parameters(), *module.buffers())))


class _PackedForward:
    """A linear layer's forward over its weight, in panels of 16 bits where it is such numbers and the copy does not
    fill the memory; the layer's own with gradients, or once its weight changed.
    """

    def __init__(self, layer: nn.Linear):
        self.layer, self.made_of = layer, state_of(layer.weight)
        weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        self.panels = None if products.fills_the_memory([weight], each=2) else of_16_bits(weight)
        self.run = products.linear(weight, bias, self.panels)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.is_current():
            return F.linear(x, self.layer.weight, self.layer.bias)
        return self.run(x)

    def is_current(self) -> bool:
        """Whether the layer's weight is the one that was packed."""
        return self.made_of == state_of(self.layer.weight)
