"""Weights in panels of 16 outputs, the order in which products of few rows read them fastest (`panel_rows.h`)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

HALVES, BYTES, NIBBLES, SHORTS = range(4)  # as `few_rows.h` numbers them
PANEL = 16
SHIFTS = 0, 16, 4, 20, 8, 24, 12, 28  # of a word's eight numbers of 4 bits


@dataclass(frozen=True)
class Panels:
    """Weights [out, in], padded with zeros to multiples of 64 outputs and 32 inputs.

    numbers: by `kind` int32[out / 16, in / 2, 16] of two bfloat16 numbers of a row per word, the first in its lower
        half (HALVES); int8 (BYTES) or float16 (SHORTS) [out / 16, in, 16]; or int32[out / 16, in / 8, 16] of eight
        numbers 0 to 15 of a row per word, those of even places in its lower half (NIBBLES).
    scale: float32[out]; weights are its product with the numbers of a row. None for 1.
    block_scale, block_offset: float16 or float32 [out / 16, in / group, 16]; weights are a block's `group` numbers
        times its scale, plus its offset. None for 1 and 0.
    rounded: whether products round their inputs (`in_bytes`).
    """

    shape: tuple[int, int]
    kind: int
    numbers: Tensor
    scale: Tensor | None = None
    block_scale: Tensor | None = None
    block_offset: Tensor | None = None
    group: int = 0
    rounded: bool = False

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def form(self) -> tuple:
        """The layout of the numbers, which must be equal for matrices that are multiplied in one step."""
        return self.kind, self.group, self.rounded, *((name, tensor.dtype) for name, tensor in self.tensors.items())

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether inputs may be of a dtype: blocks and float16 numbers are multiplied with float32 alone."""
        plain = self.kind in (HALVES, BYTES) and self.group == 0
        return dtype == torch.float32 or plain and dtype == torch.bfloat16

    def rows(self, outputs: Tensor | None = None) -> Tensor:
        """The weights of some outputs int64[...] as float32[..., in], or of all."""
        outputs = torch.arange(self.shape[0], device=self.numbers.device) if outputs is None else outputs
        panel, lane = outputs // PANEL, outputs % PANEL
        numbers, *factors = (part if part is None else part[panel, :, lane]
                             for part in (self.numbers, self.block_scale, self.block_offset))
        if self.kind == HALVES:
            numbers = numbers.contiguous().view(torch.bfloat16)
        if self.kind == NIBBLES:
            numbers = torch.stack([numbers >> shift & 15 for shift in SHIFTS], dim=-1).flatten(-2)
        weights = numbers[..., : self.shape[1]].float()
        if self.group:
            block_scale, block_offset = (0.0 if part is None else part.float()[..., None] for part in factors)
            weights = (weights.unflatten(-1, (-1, self.group)) * block_scale + block_offset).flatten(-2)
        return weights if self.scale is None else weights * self.scale[outputs, None]


def in_bytes(x: Tensor) -> Tensor:
    """x [..., in] rounded: each 32 numbers are whole numbers of -127 to 127 times their scale, the largest over 127."""
    blocks = F.pad(x.float(), (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    # A Python number over a tensor would be rounded twice.
    over = torch.where(largest <= 1e-30, 0.0, largest.new_tensor(127.0) / largest)
    return ((blocks * over).round() * (largest / 127)).flatten(-2)[..., : x.shape[-1]].to(x.dtype)


def of_16_bits(weight: Tensor) -> Panels | None:
    """Panels of weights [out, in] in bfloat16, or in float32 if they are numbers of 16 bits; None for others."""
    weight = weight.detach()
    for kind, dtype in ((HALVES, torch.bfloat16), (SHORTS, torch.float16)):
        # The first row alone tells most float32 weights apart.
        if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in (weight[:1], weight)):
            numbers = _in_panels(weight.to(dtype))
            if kind == HALVES:  # pairs of a row's numbers become a word
                numbers = numbers.unflatten(1, (-1, 2)).transpose(2, 3).contiguous().view(torch.int32).squeeze(-1)
            return Panels(tuple(weight.shape), kind, numbers)
    return None


def of_int8(numbers: Tensor, scale: Tensor) -> Panels:
    """Panels of numbers int8[out, in] with a scale [out] each row."""
    return Panels(tuple(numbers.shape), BYTES, _in_panels(numbers), scale=scale.float().contiguous())


def of_blocks(numbers: Tensor, scale: Tensor, offset: Tensor | None, bits: int) -> Panels:
    """Panels of weights numbers * scale + offset; numbers [out, in], 0 to 15 for 4 bits, int8 for 8.

    scale, offset: float32[out, in / group], held in float16 where that loses nothing.
    """
    packed = _in_panels(numbers.to(torch.int32 if bits == 4 else torch.int8))
    if bits == 4:
        packed = sum(part << shift for part, shift in zip(packed.unflatten(1, (-1, 8)).unbind(2), SHIFTS)).contiguous()
    factors = [part for part in (scale, offset) if part is not None]
    if all(torch.equal(part.half().float(), part) for part in factors):
        factors = [part.half() for part in factors]
    return Panels(tuple(numbers.shape), {4: NIBBLES, 8: BYTES}[bits], packed, None,
                  *(_in_panels(part, inputs=1) for part in factors), group=numbers.shape[1] // scale.shape[1])


def _in_panels(weight: Tensor, inputs: int = 32) -> Tensor:
    """Weights [out, in] as [out / 16, in, 16], padded with zeros to multiples of 64 outputs and of so many inputs."""
    whole = F.pad(weight, (0, -weight.shape[1] % inputs, 0, -len(weight) % 64))
    return whole.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
