"""The types in which GGUF files store tensors: their floats, and their blocks of quantised weights in one common form.

The gguf package's own `quants.dequantize` is the definition; weights from here equal it in float32.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.models.checks import PairError, first_line

OTHER_TYPES = "take the model as Q4_1, Q8_0, F16 or safetensors"


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor as its file stores it.

    shape: of its values, in numpy's order, [out, in] for a matrix; data: these values, or for BF16 and blocks the bytes
    uint8 [*shape[:-1], bytes of a row].
    """

    path: Path
    name: str
    type: str
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class Quants:
    """Weights as scale * quants + offset, with one scale and one offset for each `group` of neighbours in a row."""

    quants: np.ndarray  # [..., in], uint8 of 0..15 with 4 bits, int8 with 8
    scale: np.ndarray  # float32 [..., in / group]
    offset: np.ndarray | None  # float32 [..., in / group]
    group: int
    bits: int


def floats(stored: Stored) -> np.ndarray:
    """float32 [*shape] of a tensor in F32, F16 or BF16. PairError for other types."""
    if stored.type == "BF16":  # the upper half of a float32
        return (stored.data.view("<u2").astype("<u4") << 16).view("<f4")
    if stored.type not in ("F32", "F16"):
        raise _refused(stored, "as floats")
    return stored.data.astype(np.float32, copy=False)


def unpacked(stored: Stored) -> Quants:
    """The weights of a tensor in one of the types of `BLOCKS`. PairError for other types."""
    if stored.type not in BLOCKS:
        raise _refused(stored, "as blocks")
    size, unpack = BLOCKS[stored.type]
    rows, count = stored.shape[:-1], stored.shape[-1]
    quants, scale, offset = unpack(stored.data.reshape(*rows, count // size, -1))
    groups = scale.shape[-2] * scale.shape[-1]
    return Quants(quants.reshape(stored.shape), scale.reshape(*rows, groups),
                  None if offset is None else offset.reshape(*rows, groups), group=count // groups,
                  bits=4 if quants.dtype == np.uint8 else 8)


def check_finite(stored: Stored) -> None:
    """PairError where a tensor holds NaN or an infinite value, or is of a type that cannot be dequantised."""
    with np.errstate(all="ignore"):  # what overflows is found below
        if stored.data.dtype != np.uint8:
            deciding = [stored.data]
        elif stored.type == "BF16":
            deciding = [floats(stored)]
        elif stored.type in BLOCKS:  # a float16 times a block's integers never overflows
            form = unpacked(stored)
            deciding = [form.scale] if form.offset is None else [form.scale, form.offset]
        else:
            from gguf import GGMLQuantizationType, quants

            try:
                deciding = [quants.dequantize(stored.data, GGMLQuantizationType[stored.type])]
            except NotImplementedError as error:
                raise PairError(f"{stored.path} has a quantisation that cannot be read ({first_line(error)}; tensor "
                                f"{short(stored.name)}); {OTHER_TYPES}") from None
    for values in deciding:
        wrong = values[~np.isfinite(values)]
        if len(wrong):
            raise PairError(f"{stored.path}: tensor {short(stored.name)} ({stored.type}) holds {wrong[0]} as a weight "
                            "or scale; fetch the file again, or take another file of this model")


def short(name: str) -> str:
    """A name as errors quote it; that of a damaged file may have any length."""
    text = repr(name[:80])
    return text if len(text) <= 80 else f"{text[:76]}...'"


def _refused(stored: Stored, form: str) -> PairError:
    return PairError(f"{stored.path}: tensor {short(stored.name)} is {stored.type}, which is not read {form}; "
                     f"{OTHER_TYPES}")


# -------------------------------------------------------------------------------------- the blocks, one type at a time


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """float32 [..., 1] from the float16 at a place of each block."""
    return blocks[..., at : at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[..., n] -> [..., 2 n]: the lower four bits of all bytes, then the upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _five_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """int8 [..., 32] from each block's fifth bits, which start at a place, and the nibbles after them."""
    fifth = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    return (_nibbles(blocks[..., at + 4 :]) | fifth << 4).view(np.int8)


def _q4_k(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight groups with a scale and a minimum of 6 bits: those of the first four groups are the lower 6 bits of a byte,
    those of the last four are 4 bits of their own and the upper 2 of these bytes.
    """
    first, second, rest = np.split(blocks[..., 4:16], 3, axis=-1)
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 48], axis=-1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 2 & 48], axis=-1)
    quants = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32))
    return quants, _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _q6_k(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
    """Two halves of 128 values: 64 bytes with their lower four bits, 32 with their upper two. 16 groups of 8 bits."""
    lower = _nibbles(blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64))
    upper = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    quants = (lower | (upper.reshape(lower.shape) & 3) << 4).view(np.int8) - np.int8(32)
    return quants, _half(blocks, 208) * blocks[..., 192:208].view(np.int8), None


BLOCKS = {  # values of a block; bytes [..., blocks, size] -> quants, and scale and offset [..., blocks, groups]
    "Q4_0": (32, lambda blocks: (_nibbles(blocks[..., 2:]), _half(blocks, 0), -8 * _half(blocks, 0))),
    "Q4_1": (32, lambda blocks: (_nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))),
    "Q5_0": (32, lambda blocks: (_five_bits(blocks, 2) - np.int8(16), _half(blocks, 0), None)),
    "Q5_1": (32, lambda blocks: (_five_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))),
    "Q8_0": (32, lambda blocks: (blocks[..., 2:].view(np.int8), _half(blocks, 0), None)),
    "Q4_K": (256, _q4_k),
    "Q6_K": (256, _q6_k)}
