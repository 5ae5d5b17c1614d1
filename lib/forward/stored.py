"""A GGUF file's own numbers as a model's weights: each block keeps its few bits, rearranged once into panels."""

from pathlib import Path

import torch
from gguf import ReaderTensor
from torch import Tensor, nn

from lib.forward.packed import STORED, PackedEmbedding, PackedLinear
from lib.kernels import panels
from lib.models import gguf, gguf_blocks
from lib.models.checks import PairError


def take_weights(model, path: Path) -> None:
    """Gives a model that was read from a GGUF file the numbers that the file stores, for float32 activations.

    path: of the file, or of its first shard.

    PairError where a tensor has a type whose blocks are not read.
    """
    metadata, tensors = gguf.read(path)
    is_tied, vocabulary = model.config.tie_word_embeddings, model.get_input_embeddings().num_embeddings
    for tensor in gguf.parameters(path, metadata, tensors, model):
        name, _, kind = tensor.name.rpartition(".")
        module = model.get_submodule(name)
        if module in (model.get_input_embeddings(), model.get_output_embeddings()):
            tensor = tensor._replace(data=tensor.data[:vocabulary])  # which may have been cut to its partner's
        weights = _packed(path, tensor)
        if isinstance(weights, Tensor):
            setattr(module, kind, nn.Parameter(weights, requires_grad=False))
        elif isinstance(module, nn.Embedding):
            model.set_submodule(name, PackedEmbedding(weights, torch.float32, getattr(module, "embed_scale", None)))
        else:
            model.set_submodule(name, PackedLinear(weights, torch.float32, module.bias))
    if is_tied:
        table = model.get_input_embeddings()
        if isinstance(table, PackedEmbedding):
            model.lm_head = PackedLinear(table.panels, torch.float32)
        else:
            model.lm_head.weight = table.weight
    model.quantised = STORED


def _packed(path: Path, tensor: ReaderTensor) -> panels.Panels | Tensor:
    """A matrix in panels; vectors, and float32 numbers that 16 bits do not hold, stay as they are."""
    if tensor.tensor_type.name in gguf_blocks.TYPES:
        *parts, bits = gguf_blocks.unpacked(tensor)
        return panels.of_blocks(*(None if part is None else torch.from_numpy(part) for part in parts), bits)
    if tensor.data.dtype == "uint8" and tensor.tensor_type.name != "BF16":
        raise PairError(f"{path}: {tensor.name} is of the type {tensor.tensor_type.name}, whose blocks are not read as "
                        f"they are stored; take another dtype, or take the model as {', '.join(gguf_blocks.TYPES)}")
    weight = torch.from_numpy(gguf.dequantised(tensor))
    return weight if weight.ndim == 1 else panels.of_16_bits(weight) or weight
