"""Tree attention over buffers of fixed capacity, with the lengths and the masks of the trees on the device.

A call reads nothing on the host but shapes, so that a CUDA graph can hold it and replay it for other texts and trees.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

WORD = 32  # bits


class StaticTree(NamedTuple):
    """What the nodes of B rows see: each row's prefix, and of the 32 * w keys after it those whose bit is set.

    words: int32[B, m, w], as `packed_bits` makes them. lengths: int32[B], of the prefixes. Each node sees a key.
    """

    words: Tensor
    lengths: Tensor


def static_attention(query: Tensor, key: Tensor, value: Tensor, tree: StaticTree, scale: float) -> Tensor:
    """Attention of query [B, Hq, m, d] over key, value [B, Hkv, S, d], where S is at least each length + 32 * w.

    Returns [B, Hq, m, d]. Keys that no node of a row sees must be finite. Code that torch compiles calls it as one
    operator, which `define_operator` has to define before.
    """
    if torch.compiler.is_compiling():
        return torch.ops.lib.static_attention(query, key, value, *tree, scale)
    return _attend(query, key, value, *tree, scale)


@cache
def define_operator() -> None:
    """Tells torch's compiler about `static_attention`."""
    operator = torch.library.custom_op("lib::static_attention", _attend, mutates_args=())
    operator.register_fake(lambda query, *others: torch.empty_like(query, memory_format=torch.contiguous_format))


def _attend(query: Tensor, key: Tensor, value: Tensor, words: Tensor, lengths: Tensor, scale: float) -> Tensor:
    if query.is_cuda:
        from lib.attention.backends.triton_backend import ranges
        from lib.attention.backends.triton_kernel import fused

        tree_keys, query = WORD * words.shape[-1], query if query.stride(-1) == 1 else query.contiguous()
        return fused(query, key, value, words, tree_keys, lengths, scale,
                     splits=ranges(query, key, value, key.shape[2]))[0]
    place = torch.arange(key.shape[2]) - lengths[:, None]  # of each key in the tree: negative in the prefix
    word = words.take_along_dim((place >> 5).clamp(0, words.shape[-1] - 1)[:, None], -1)  # [B, m, S]
    inside = (place < WORD * words.shape[-1])[:, None] & (word >> (place & 31)[:, None] & 1).bool()
    visible = (place < 0)[:, None] | inside
    output = F.scaled_dot_product_attention(query, key, value, visible[:, None], scale=scale, enable_gqa=True)
    return output.contiguous()
