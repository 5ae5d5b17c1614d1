"""Weights in fewer bits: int8 with a scale for each output, or the blocks of a GGUF file as they are stored.

Both are layers over `lib.kernels.panels`, whose numbers are read as they are where the kernels run; elsewhere a call
converts them, which saves memory and no time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.kernels import panels, products
from lib.kernels.panels import Panels

NONE, INT8, STORED = "none", "int8", "stored"
KINDS = (NONE, INT8, STORED)
LARGEST = 127  # of int8, symmetric


class _OverPanels(nn.Module):
    """A module over panels, held as buffers so that they move with its model."""

    def __init__(self, held: Panels):
        super().__init__()
        self.about = {"shape": held.shape, "kind": held.kind, "group": held.group}
        for name, tensor in held.tensors.items():
            self.register_buffer(name, tensor)

    @property
    def panels(self) -> Panels:
        """The weights [out, in]."""
        return Panels(**self.about, **dict(self.named_buffers(recurse=False)))


class PackedLinear(_OverPanels):
    """A linear layer whose weights [out, in] are in panels, in a model with activations of a dtype."""

    def __init__(self, held: Panels, dtype: torch.dtype, bias: Tensor | None = None):
        super().__init__(held)
        self.dtype = dtype
        self.out_features, self.in_features = held.shape
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the dtype of x."""
        held = self.panels
        ran = x.dtype == torch.float32 or held.takes_bfloat16 and x.dtype == torch.bfloat16
        if ran and x.device.type == "cpu" and not x.requires_grad and products.build.unavailable() is None:
            return products.linear(None, self.bias, held, x.dtype)(x)
        return F.linear(x, held.rows().to(x.dtype), self.bias)

    def of_outputs(self, outputs: Tensor | slice) -> nn.Linear:
        """A linear layer of some outputs, with weights in the activations' number format."""
        chosen = torch.arange(self.out_features, device=self.numbers.device)[outputs]
        layer = nn.Linear(self.in_features, len(chosen), bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.panels.rows(chosen).to(self.dtype), requires_grad=False)
        if self.bias is not None:
            layer.bias = nn.Parameter(self.bias.detach()[chosen], requires_grad=False)
        return layer


class PackedEmbedding(_OverPanels):
    """An embedding whose rows are in panels, which it may share with an output layer."""

    def __init__(self, held: Panels, dtype: torch.dtype, embed_scale: Tensor | None = None):
        super().__init__(held)
        (self.num_embeddings, self.embedding_dim), self.dtype = held.shape, dtype
        self.embed_scale = torch.ones(()) if embed_scale is None else embed_scale

    def forward(self, tokens: Tensor) -> Tensor:
        """int64[...] -> [..., in], times the scale."""
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
