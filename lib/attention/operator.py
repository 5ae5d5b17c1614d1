"""Tree attention: every node of a draft tree attends to the whole prefix and to its own ancestors, in one call."""

import numpy as np
import torch
from torch import Tensor

from lib.attention.backends import BACKENDS, ENTRIES, refusal, say_once
from lib.attention.masks import SharedMask
from lib.kernels.build import unavailable
from lib.lab import processor


def tree_attention(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor | np.ndarray | SharedMask,
                   prefix_length: int | Tensor, *, scale: float | None = None, backend: str = "auto",
                   window: int | None = None, sinks: Tensor | None = None, softcap: float | None = None) -> Tensor:
    """Attention of mq tree nodes over a prefix and over the mk tree keys that follow it.

    query: [B, Hq, mq, d].
    key, value: [B, Hkv, S, d] and [B, Hkv, S, dv]; Hq is a multiple of Hkv (grouped queries).
    tree_mask: bool [mq, mk] or [B, mq, mk], the tree keys that a node sees; calls that share one (a model's layers)
        take a SharedMask of it, so that additive masks are made once.
    prefix_length: int, or int[B] (a tensor on the CPU avoids a synchronisation). Row b sees keys 0 .. prefix[b] - 1,
        and of prefix[b] .. prefix[b] + mk - 1 those that its mask allows; keys beyond never change the result.
    backend: "auto" or one of `BACKENDS`.
    window: a node sees of these keys the last `window` ones, its own included. Its position is prefix[b] plus the
        number of its ancestors among the tree keys.
    sinks: [Hq], logits of keys without a value: each adds to its head's denominator. softcap: scores s (times scale)
        become softcap * tanh(s / softcap).
    Returns [B, Hq, mq, dv] in the query's dtype. ValueError where shapes, dtypes or lengths do not describe a tree.
    """
    prefix = prefix_list(prefix_length, query.shape[0])
    if isinstance(tree_mask, np.ndarray):
        tree_mask = torch.tensor(tree_mask)  # a copy: that of a tree is read-only
    mask = tree_mask if isinstance(tree_mask, SharedMask) else SharedMask(tree_mask)
    _check(query, key, value, mask.visible, prefix)
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(['auto', *BACKENDS])}")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if backend == "reference":
        return BACKENDS[backend](query, key, value, mask, prefix, scale, softcap, window, sinks)[0]
    start, mask, prefix = mask.within(prefix, window)
    key, value = key[:, :, start:], value[:, :, start:]
    if backend == "auto":
        backend = choose_backend(query, key, value, prefix)
    output, lse = BACKENDS[backend](query, key, value, mask, prefix, scale, softcap, need_lse=sinks is not None)
    if sinks is not None:
        output = output * (lse - sinks.to(lse.dtype)[:, None]).sigmoid()[..., None].to(output.dtype)
    return output


def choose_backend(query: Tensor, key: Tensor, value: Tensor, prefix: list[int]) -> str:
    """The backend that `backend="auto"` takes for these inputs after prefixes of these lengths, one per row.

    Where a processor cannot run its own kernel at all, the log says so once.
    """
    # The rule comes from notebook 03 on three machines: over 449 cells of batch, prefix, draft and number format it
    # takes the fastest backend in 439, and 0.5 % more time than the fastest in the geometric mean.
    # - Processors (AMX; AVX-512): the kernel is faster, but for a single query row per key head where matrix units
    #   multiply, which read whole tiles of rows: there PyTorch's attention takes 0.6 to 1 times its time.
    # - GPUs (capability 9.0): folded attention takes about 22 ns times prefix + 1,000 and serves rows of one length at
    #   a time; the fused kernel takes about 270 us for rows of any lengths.
    if query.is_cuda:
        several = len(set(prefix)) > 1
        fastest = "triton" if several and len(prefix) * (max(prefix) + 1000) > 12_000 else "folded"
    else:
        rows = query.shape[1] // key.shape[1] * query.shape[2]
        fastest = "folded" if rows == 1 and processor.has_matrix_units() else "onepass"
        if query.dtype in ENTRIES and (reason := unavailable()):
            say_once(reason)
    return "folded" if refusal(fastest, query, key, value) else fastest


def prefix_list(prefix_length: int | Tensor, batch: int) -> list[int]:
    """Prefix lengths as B Python integers."""
    lengths = torch.as_tensor(prefix_length)
    if lengths.is_floating_point() or lengths.numel() not in (1, batch):
        raise ValueError(f"prefix_length is {prefix_length}; give one int, or one for each of {batch} rows")
    return lengths.reshape(-1).expand(batch).tolist()


def _check(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor, prefix: list[int]) -> None:
    """ValueError for inputs that do not describe a tree, with their shapes."""
    four = query.dim() == key.dim() == value.dim() == 4 and 0 not in (*query.shape, *key.shape, *value.shape)
    if not four or key.shape[:3] != value.shape[:3] or key.shape[::3] != query.shape[::3]:
        raise ValueError(f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)} do not fit; "
                         "they are [B, Hq, mq, d], [B, Hkv, S, d], [B, Hkv, S, dv], none of them empty")
    if not query.device == key.device == value.device:
        raise ValueError(f"query is on {query.device}, key on {key.device}, value on {value.device}; give one device")
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise ValueError(f"query is {query.dtype}, key {key.dtype}, value {value.dtype}; give all three in one "
                         "floating-point dtype")
    (batch, heads, mq, _), (_, kv_heads, stored, _) = query.shape, key.shape
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads over {kv_heads} key heads: the first must be a multiple of the second")
    if tree_mask.dtype != torch.bool:
        raise ValueError(f"tree_mask is {tree_mask.dtype}; give torch.bool, True where a node sees a key")
    of_rows = tree_mask.shape[:-2] in ((), (1,), (batch,))
    if tree_mask.dim() not in (2, 3) or tree_mask.shape[-2] != mq or not tree_mask.shape[-1] or not of_rows:
        raise ValueError(f"tree_mask is {tuple(tree_mask.shape)}; {batch} rows of {mq} queries "
                         f"take [{mq}, mk] or [{batch}, {mq}, mk], of at least one key")
    needed = max(prefix) + tree_mask.shape[-1]
    if min(prefix) < 0 or needed > stored:
        raise ValueError(f"prefix lengths {min(prefix)} to {max(prefix)} and {tree_mask.shape[-1]} tree keys need "
                         f"{needed} stored keys and no negative length; there are {stored}")
    alone = [row for row, length in enumerate(prefix) if not length]
    if alone and not (tree_mask[alone] if tree_mask.dim() == 3 and len(tree_mask) > 1 else tree_mask).any(-1).all():
        raise ValueError("a node of tree_mask sees nothing and there is no prefix; every node sees at least itself")
