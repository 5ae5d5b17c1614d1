"""Linear layers and embeddings over panels, the order in which products of few rows read weights fastest
(`lib.kernels.panels`). They stand in place of a model's own ones, so that no weight is held twice.

Panels hold numbers of 16 bits (`pack`), int8 numbers with a scale for each output (`quantize_int8`), or the blocks of a
GGUF file (`stored`). Where the kernels do not run, a call converts the panels, which saves memory and no time. On
processors with products of bytes and without matrix units, layers of blocks round their inputs to bytes
(`panels.in_bytes`), as GGUF files' own programs do.
"""

from dataclasses import replace
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from lib.kernels import build, panels, products
from lib.kernels.build import served
from lib.kernels.panels import Panels, of_16_bits

NONE, INT8, STORED = KINDS = "none", "int8", "stored"  # of weights
LARGEST = 127  # of int8, symmetric


class _OverPanels(nn.Module):
    """A module over panels, which are buffers that move with its model."""

    def __init__(self, weights: Panels):
        super().__init__()
        self.layout = {name: getattr(weights, name) for name in ("shape", "kind", "group", "rounded")}
        for name, tensor in weights.tensors.items():
            self.register_buffer(name, tensor)

    @property
    def panels(self) -> Panels:
        """The weights [out, in]."""
        return Panels(**self.layout, **dict(self.named_buffers(recurse=False)))


class PackedLinear(_OverPanels):
    """A linear layer whose weights [out, in] are in panels, in a model with activations of a dtype."""

    def __init__(self, weights: Panels, dtype: torch.dtype, bias: Tensor | None = None):
        super().__init__(replace(weights, rounded=dtype in products.NAMES and products.rounds(weights)))
        self.dtype, self.bias = dtype, bias
        self.out_features, self.in_features = weights.shape
        self.runs: dict[torch.dtype, Callable | None] = {}  # the kernels' product by the dtype of its inputs

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in self.runs:
            is_served = x.device.type == "cpu" and self.panels.takes(x.dtype)
            self.runs[x.dtype] = served(products.linear, None, self.bias, self.panels, x.dtype) if is_served else None
        if (run := self.runs[x.dtype]) is not None and not x.requires_grad:
            return run(x)
        weights = self.panels
        read = panels.in_bytes(x) if weights.rounded and x.device.type == "cpu" else x
        return F.linear(read, weights.rows().to(x.dtype), self.bias)

    def _apply(self, function: Callable, recurse: bool = True) -> nn.Module:
        self.runs = {}  # products read addresses, and the buffers move
        return super()._apply(function, recurse)


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


def packed(linear: nn.Linear) -> "nn.Linear | PackedLinear":
    """The layer over panels, where its weights are numbers of 16 bits that the kernels multiply; else the layer."""
    weight = linear.weight
    is_served = weight.dtype in products.NAMES and weight.device.type == "cpu" and build.unavailable() is None
    weights = of_16_bits(weight) if is_served else None
    return linear if weights is None else PackedLinear(weights, weight.dtype, linear.bias)


def quantize_int8(model) -> None:
    """Replaces all linear layers of a causal language model by int8 layers."""
    _replace_linears(model, int8)
    model.quantised = INT8


def pack(module: nn.Module) -> nn.Module:
    """Replaces the linear layers of a module that is not trained by packed ones where they can be, and returns it."""
    return _replace_linears(module, packed)


def _replace_linears(module: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """The module, with make(layer) in place of each linear layer. An embedding that shares the output layer's weight
    shares its panels too.
    """
    output = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
    is_tied = type(output) is nn.Linear and output.weight is module.get_input_embeddings().weight
    for parent in [part for part in module.modules() if type(part) is not nn.Linear]:  # so that replaced ones are freed
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, make(child))
    if is_tied and isinstance(output := module.get_output_embeddings(), PackedLinear):
        table = module.get_input_embeddings()
        module.set_input_embeddings(
            PackedEmbedding(output.panels, table.weight.dtype, getattr(table, "embed_scale", None)))
    return module


def weights_of(module: nn.Module) -> tuple:
    """A module's parameters and buffers by address, dtype and number of writes: what changes whenever one does."""
    return tuple((weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version)
                 for weight in (*module.parameters(), *module.buffers()))
