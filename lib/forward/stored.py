"""A GGUF file's own numbers as a model's weights: each block keeps its few bits, rearranged once into panels."""

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor, nn

from lib.forward.packed import STORED, PackedEmbedding, PackedLinear
from lib.kernels import panels
from lib.models import gguf as gguf_files
from lib.models.checks import PairError

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K")


def take_weights(model, path: Path) -> None:
    """Gives a model that was read from a GGUF file the numbers that the file stores, for float32 activations.

    path: of the file, or of its first shard. PairError where a tensor has a type whose blocks are not read.
    """
    metadata, tensors = gguf_files.read(path)
    is_tied, vocabulary = model.config.tie_word_embeddings, model.get_input_embeddings().num_embeddings
    for tensor in gguf_files.parameters(path, metadata, tensors, model):
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


def _packed(path: Path, tensor: gguf.ReaderTensor) -> panels.Panels | Tensor:
    """A matrix in panels; vectors, and float32 numbers that 16 bits do not hold, stay as they are."""
    if tensor.tensor_type.name in TYPES:
        *parts, bits = unpacked(tensor)
        return panels.of_blocks(*(None if part is None else torch.from_numpy(part) for part in parts), bits)
    if tensor.data.dtype == "uint8" and tensor.tensor_type.name != "BF16":
        raise PairError(f"{path}: {tensor.name} is of the type {tensor.tensor_type.name}, whose blocks are not read as "
                        f"they are stored; take another dtype, or take the model as {', '.join(TYPES)}")
    weight = torch.from_numpy(gguf_files.dequantised(tensor))
    return weight if weight.ndim == 1 else panels.of_16_bits(weight) or weight


def unpacked(tensor: gguf.ReaderTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, int]:
    """Numbers, scale, offset and bits of a matrix in one of `TYPES`, whose weights are scale * numbers + offset, as in
    gguf-py's `dequantize`.

    numbers: [out, in], uint8 of 0 to 15 with 4 bits, int8 with 8; scale, offset: float32[out, in / group] of groups of
    neighbours in a row, or None for no offset.
    """
    kind = tensor.tensor_type.name
    blocks = tensor.data.reshape(len(tensor.data), -1, gguf.GGML_QUANT_SIZES[tensor.tensor_type][1])
    halves = blocks.view("<f2")
    scale, offset = halves[..., :1].astype(np.float32), halves[..., 1:2].astype(np.float32)
    if kind in ("Q4_0", "Q4_1"):
        numbers = _nibbles(blocks[..., -16:])
        offset = -8 * scale if kind == "Q4_0" else offset
    elif kind in ("Q5_0", "Q5_1"):
        fifth_bits = np.unpackbits(blocks[..., -20:-16], axis=-1, bitorder="little")
        numbers = (_nibbles(blocks[..., -16:]) | fifth_bits << 4).view(np.int8)
        numbers, offset = (numbers - np.int8(16), None) if kind == "Q5_0" else (numbers, offset)
    elif kind == "Q8_0":
        numbers, offset = blocks[..., 2:].view(np.int8), None
    elif kind == "Q4_K":  # eight groups, with a scale and a minimum of 6 bits each
        scales, minima = gguf.quants.Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
        numbers = _nibbles(blocks[..., 16:].reshape(-1, 4, 32))
        scale, offset = scale * scales.reshape(*blocks.shape[:2], 8), -offset * minima.reshape(*blocks.shape[:2], 8)
    elif kind == "Q6_K":  # two halves of 128 values: 64 bytes with their lower four bits, 32 with their upper two
        lower = _nibbles(blocks[..., :128].reshape(-1, 2, 64))
        upper = blocks[..., 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
        numbers = (lower | (upper.reshape(lower.shape) & 3) << 4).view(np.int8) - np.int8(32)
        scale, offset = halves[..., -1:].astype(np.float32) * blocks[..., 192:208].view(np.int8), None
    scale, offset = (None if part is None else part.reshape(len(blocks), -1) for part in (scale, offset))
    return numbers.reshape(len(blocks), -1), scale, offset, 4 if numbers.dtype == np.uint8 else 8


def _nibbles(values: np.ndarray) -> np.ndarray:
    """uint8[..., n] -> [..., 2 n]: the lower four bits of all bytes, then the upper ones."""
    return np.concatenate([values & 15, values >> 4], axis=-1)
