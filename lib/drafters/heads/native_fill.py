"""A static tree filled by an EAGLE-3 head in one call of C++ (`fill.h`), where this machine can run it."""

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor, nn

from lib.drafters.heads.eagle3 import Eagle3Head
from lib.forward.native import Levels, NativeBlocks
from lib.kernels import build
from lib.kernels.products import NAMES, start_of
from lib.models.cache import TreeCache


class Fusion(ctypes.Structure):
    """The struct of the same name in `fill.h`."""

    _fields_ = [("embedded_norm", c_void_p), ("state_norm", c_void_p), ("normed_residual", c_int64)]


class HeadFill(NativeBlocks):
    """A head with an output layer and an embedding. Make it anew when weights change. CannotServe as `NativeBlocks`."""

    def __init__(self, head: Eagle3Head, output: nn.Module, embedding: nn.Module):
        layer = head.midlayer
        super().__init__([layer], layer.self_attn.rotary, head.norm, output, embedding)
        self.fusion = Fusion(*map(start_of, (layer.input_layernorm.weight, layer.hidden_norm.weight)),
                             head.normed_residual)
        self.run_head = getattr(build.library(), f"fill_head_{NAMES[self.like.dtype]}")

    def fill_after(self, states: Tensor, roots: Sequence[int], cache: TreeCache, levels: Levels, choices: int,
                   names: Tensor | None = None) -> Tensor:
        """The tokens int64[B, size] of a static tree after roots, from the head's states [B, H] there, in one call.
        Other arguments, and the cache afterwards: as for `NativeBlocks.fill`.
        """
        batch, states = len(states), states.contiguous()
        call = self._call(cache, batch, nodes=0, ahead=levels.forwarded)
        filled = torch.empty(batch, levels.size, dtype=torch.long)
        filled[:, 0] = torch.tensor(roots)
        logits = self.like.new_empty(batch, levels.widest, call.vocabulary.out)
        call.inputs, call.logits, call.names = map(start_of, (states, logits, names))
        unknown = self.run_head(ctypes.byref(call), ctypes.byref(self.fusion), levels.structs,
                                *map(c_int64, (len(levels.structs), levels.size, choices)), c_void_p(start_of(filled)))
        if unknown >= 0:
            raise IndexError(f"token {filled.flatten()[unknown]} is none of the embedding's {call.embedding.out}; "
                             "take the head of this target")
        return filled
