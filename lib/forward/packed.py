"""Linear layers and embeddings over panels, the order in which products of few rows read weights fastest
(`lib.kernels.panels`).

`PackedLinear` and `PackedEmbedding` have weights of fewer bits in place of the model's own: int8 with a scale for each
output (`quantize_int8`), or the blocks of a GGUF file (`stored`). Where the kernels do not run, a call converts the
panels, which saves memory and no time. `pack` keeps the weights, and adds panels to a module's linear layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.kernels import build, panels, products
from lib.kernels.build import served
from lib.kernels.panels import Panels, of_16_bits

NONE, INT8, STORED = KINDS = "none", "int8", "stored"  # of weights
LARGEST = 127  # of int8, symmetric


class _OverPanels(nn.Module):
    """A module over panels, which are buffers that move with its model."""

    def __init__(self, weights: Panels):
        super().__init__()
        self.layout = {"shape": weights.shape, "kind": weights.kind, "group": weights.group}
        for name, tensor in weights.tensors.items():
            self.register_buffer(name, tensor)

    @property
    def panels(self) -> Panels:
        """The weights [out, in]."""
        return Panels(**self.layout, **dict(self.named_buffers(recurse=False)))


class PackedLinear(_OverPanels):
    """A linear layer whose weights [out, in] are in panels, in a model with activations of a dtype."""

    def __init__(self, weights: Panels, dtype: torch.dtype, bias: Tensor | None = None):
        super().__init__(weights)
        self.dtype, self.bias = dtype, bias
        self.out_features, self.in_features = weights.shape

    def forward(self, x: Tensor) -> Tensor:
        weights = self.panels
        if (x.device.type == "cpu" and weights.takes(x.dtype) and not x.requires_grad
                and build.unavailable() is None):
            return products.linear(None, self.bias, weights, x.dtype)(x)
        return F.linear(x, weights.rows().to(x.dtype), self.bias)


class PackedEmbedding(_OverPanels):
    """An embedding whose rows are in panels, which it may share with an output layer."""

    def __init__(self, weights: Panels, dtype: torch.dtype, embed_scale: Tensor | None = None):
        super().__init__(weights)
        (self.num_embeddings, self.embedding_dim), self.dtype = weights.shape, dtype
        self.embed_scale = torch.ones(()) if embed_scale is None else embed_scale

    def forward(self, tokens: Tensor) -> Tensor:
        return self.panels.rows(tokens).to(self.dtype) * self.embed_scale.to(self.dtype)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8[out, in] and float32 (float64 for float64) scale[out] whose product is within half a scale of the weight."""
    wide = weight.detach() if weight.dtype == torch.float64 else weight.detach().float()
    scale = (wide.abs().amax(1) / LARGEST).clamp_min(torch.finfo(wide.dtype).tiny)
    return (wide / scale[:, None]).round().to(torch.int8), scale


def int8(linear: nn.Linear) -> PackedLinear:
    """A linear layer with weights rounded to int8: y = x (q s)^T + b."""
    return PackedLinear(panels.of_int8(*rounded(linear.weight)), linear.weight.dtype, linear.bias)


def quantize_int8(model) -> None:
    """Replaces all linear layers of a causal language model by int8 layers; an embedding that shares its output
    layer's weight then shares the int8 numbers.
    """
    output, table = model.get_output_embeddings(), model.get_input_embeddings()
    model.quantised = INT8
    tied = output is not None and output.weight is table.weight
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, int8(child))
    if tied:
        model.set_input_embeddings(PackedEmbedding(
            model.get_output_embeddings().panels, table.weight.dtype, getattr(table, "embed_scale", None)))


def pack(module: nn.Module) -> nn.Module:
    """Makes the linear layers of a module run packed where they can, until the module is moved or trained."""
    for layer in module.modules():
        if type(layer) is nn.Linear and (forward := served(_PackedForward, layer)) is not None:
            layer.forward = forward
    return module


def panels_of(layer: nn.Module) -> Panels | None:
    """The panels of a `PackedLinear`, or those of 16 bits that `pack` made of a layer's present weight; else None."""
    forward = vars(layer).get("forward")
    if isinstance(layer, PackedLinear):
        return layer.panels
    return forward.panels if isinstance(forward, _PackedForward) and forward.is_current() else None


def weights_of(module: nn.Module) -> tuple:
    """The state of all parameters and buffers of a module."""
    return tuple(map(_state_of, (*module.parameters(), *module.buffers())))


def _state_of(weight: Tensor) -> tuple:
    """What changes whenever a weight does: its address, its dtype, and how often it was written to."""
    return weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version


class _PackedForward:
    """A linear layer's forward over its weight, in panels of 16 bits where they hold it and fit the memory; the layer's
    own with gradients, or once its weight changed. CannotServe as `products.check_weights`.
    """

    def __init__(self, layer: nn.Linear):
        products.check_weights([layer.weight])
        self.layer, self.made_of = layer, _state_of(layer.weight)
        weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        self.panels = None if products.fills_the_memory([weight]) else of_16_bits(weight)
        self.run = products.linear(weight, bias, self.panels)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.is_current():
            return F.linear(x, self.layer.weight, self.layer.bias)
        return self.run(x)

    def is_current(self) -> bool:
        return self.made_of == _state_of(self.layer.weight)
