"""Weights in panels of 16 outputs, the order in which products of few rows read them fastest (`panel_rows.h`).

A panel holds numbers of 16 bits, int8 numbers, or blocks of 4 or 8 bits with a scale and an offset each.
"""

from dataclasses import dataclass, fields

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
    scale: float32[out], times which int8 numbers are the weights; or None.
    block_scale, block_offset: float16 or float32 [out / 16, in / group, 16]; a block's `group` numbers, times its
        scale, plus its offset if there is one, are the weights; or None.
    """

    shape: tuple[int, int]
    kind: int
    numbers: Tensor
    scale: Tensor | None = None
    block_scale: Tensor | None = None
    block_offset: Tensor | None = None
    group: int = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @property
    def form(self) -> tuple:
        """What two matrices share that are multiplied together."""
        return self.kind, self.group, *((name, tensor.dtype) for name, tensor in self.tensors.items())

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether inputs may be of a dtype: blocks with factors and float16 numbers are multiplied with float32 alone.
        """
        plain = self.kind in (HALVES, BYTES) and self.group == 0
        return dtype == torch.float32 or plain and dtype == torch.bfloat16

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def rows(self, outputs: Tensor | None = None) -> Tensor:
        """The weights of some outputs int64[...] as float32[..., in], or of all."""
        outputs = torch.arange(self.shape[0], device=self.numbers.device) if outputs is None else outputs
        panel, lane = outputs // PANEL, outputs % PANEL
        numbers, *factors = (part if part is None else part[panel, :, lane]
                             for part in (self.numbers, self.block_scale, self.block_offset))
        if self.kind == HALVES:
            both = torch.stack([numbers << 16, numbers & -65536], dim=-1)
            numbers = both.flatten(-2).contiguous().view(torch.float32)
        if self.kind == NIBBLES:
            numbers = torch.stack([numbers >> shift & 15 for shift in SHIFTS], dim=-1).flatten(-2)
        weights = numbers[..., : self.shape[1]].float()
        if self.group:
            block_scale, block_offset = factors
            blocks = weights.unflatten(-1, (-1, self.group)) * block_scale.float()[..., None]
            if block_offset is not None:
                blocks = blocks + block_offset.float()[..., None]
            weights = blocks.flatten(-2)
        return weights if self.scale is None else weights * self.scale[outputs, None]


def of_16_bits(weight: Tensor) -> Panels | None:
    """Panels of weights [out, in] in bfloat16, or in float32 if they are numbers of 16 bits; None for others."""
    if weight.dtype == torch.bfloat16:
        return _of_bfloat16(weight.detach())
    first = weight.detach()[:1]  # alone tells most float32 weights apart
    for dtype, panels_of in ((torch.bfloat16, _of_bfloat16), (torch.float16, _of_float16)):
        if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in (first, weight.detach())):
            return panels_of(weight.detach().to(dtype))
    return None


def _of_bfloat16(weight: Tensor) -> Panels:
    first, second = _in_panels(weight.view(torch.int16).int() & 0xFFFF).unflatten(1, (-1, 2)).unbind(2)
    return Panels(tuple(weight.shape), HALVES, (second << 16 | first).contiguous())


def _of_float16(weight: Tensor) -> Panels:
    return Panels(tuple(weight.shape), SHORTS, _in_panels(weight).contiguous())


def of_int8(numbers: Tensor, scale: Tensor) -> Panels:
    """Panels of numbers int8[out, in] with a scale [out] each row."""
    return Panels(tuple(numbers.shape), BYTES, _in_panels(numbers).contiguous(), scale=scale.float().contiguous())


def of_blocks(numbers: Tensor, scale: Tensor, offset: Tensor | None, bits: int) -> Panels:
    """Panels of blocks of numbers [out, in] with scale and offset float32[out, in / group]: weights are numbers * scale
    + offset.

    numbers: 0 to 15 for 4 bits, int8 for 8. Scales and offsets are held in float16 where that loses nothing.
    """
    group, kind = numbers.shape[1] // scale.shape[1], {4: NIBBLES, 8: BYTES}[bits]
    panels = _in_panels(numbers.to(torch.int32 if bits == 4 else torch.int8))
    if bits == 4:
        panels = sum(part << shift for part, shift in zip(panels.unflatten(1, (-1, 8)).unbind(2), SHIFTS))
    factors = [part for part in (scale, offset) if part is not None]
    short = all(torch.equal(part.half().float(), part) for part in factors)
    laid = [F.pad(part, (0, 0, 0, -len(part) % 64)).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
            for part in (part.half() if short else part for part in factors)]
    return Panels(tuple(numbers.shape), kind, panels.contiguous(), None, *(laid + [None])[:2], group)


def _in_panels(weight: Tensor) -> Tensor:
    """Weights [out, in] as [out / 16, in, 16], padded with zeros to multiples of 64 outputs and 32 inputs."""
    whole = F.pad(weight, (0, -weight.shape[1] % 32, 0, -len(weight) % 64))
    return whole.unflatten(0, (-1, PANEL)).transpose(1, 2)
