"""A layer that continues features (EAGLE's), filling a static tree in one call of C++ (`fill.h`)."""

import ctypes
from ctypes import c_int64, c_void_p
from typing import Mapping

from torch import Tensor, nn

from lib.attention.backends.mask import SharedMask
from lib.kernels import build
from lib.kernels.products import NAMES, SOURCES, Matrix, matrix_of, paired, start_of
from lib.models.native_blocks import Levels, NativeBlocks


class Entry(ctypes.Structure):
    """The struct of the same name in `fill.h`."""

    _fields_ = [*((name, c_void_p) for name in ("embedding", "token_norm", "feature_norm")), ("fuse", Matrix)]


class NativeFeatures(NativeBlocks):
    """One layer over features, the norm before the output layer if there is one, and that layer.

    A token's embedding and the feature before it enter through `fuse`, if there is one; else the feature enters, and
    attention reads both, normed by `norms`. known: see `NativeBlocks`.
    """

    def __init__(self, layer: nn.Module, norm: nn.Module | None, output: nn.Linear, embedding: nn.Embedding,
                 fuse: nn.Linear | None, norms: tuple[nn.Module, nn.Module] | None,
                 known: Mapping[nn.Linear, Tensor | None]):
        super().__init__([layer], layer.self_attn.rotary, norm, output, known=known)
        self.held = embedding, norms, fuse  # since the struct holds addresses alone
        self.fused_pairs = None if fuse is None else paired(fuse.weight)
        self.entry = Entry(*(start_of(part.weight) for part in (embedding, *(norms or ()))))
        if fuse is not None:
            self.entry.fuse = matrix_of(fuse.weight, fuse.bias, self.fused_pairs)
        self.choices = len(output.weight)
        self.run_fill = getattr(build.library(*SOURCES), f"fill_features_{NAMES[self.like.dtype]}")

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that are held a second time."""
        return super().copied_bytes + (0 if self.fused_pairs is None else self.fused_pairs.nbytes)

    def fill_behind(self, roots: Tensor, x: Tensor, read: Tensor | None, offsets: Tensor, cache, mask: SharedMask,
                    levels: Levels) -> Tensor:
        """The tokens int64[B, size] of a static tree with these roots int64[B], behind the last of entries x [B, m, H]
        and what attention reads of them, if that is something else; further as `NativeBlocks.fill`.
        """
        filled = roots.new_empty(len(x), levels.size)
        filled[:, 0] = roots

        def run(forward):
            sizes = map(c_int64, (len(levels.structs), levels.size, self.choices))
            return self.run_fill(forward, ctypes.byref(self.entry), levels.structs, *sizes, c_void_p(start_of(filled)))

        self._call(run, x, offsets, cache, mask, keep=1, ahead=levels.forwarded, widest=levels.widest, read=read)
        return filled
