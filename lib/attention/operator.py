"""Tree attention: every node of a draft tree attends to the whole prefix and to its own ancestors, in one call.

All nodes see the whole prefix, so that the mask covers the keys of the tree alone. Logarithms are natural; log-sum-exp
values are float32 (float64 for float64 inputs).
"""

import numpy as np
import torch
from torch import Tensor

from lib.attention.backends import implementation, onepass, refusal
from lib.attention.backends.mask import SharedMask
from lib.attention.choice import ranked, situation

MOST_REMEMBERED = 4096
_REMEMBERED: dict[tuple, str] = {}  # kinds of calls -> the backend that `auto` takes


def tree_attention(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor | np.ndarray | SharedMask,
                   prefix_length: int | Tensor, *, scale: float | None = None, backend: str = "auto",
                   return_lse: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of mq tree nodes over a prefix and over the mk tree keys that follow it.

    query: [B, Hq, mq, d].
    key, value: [B, Hkv, S, d] and [B, Hkv, S, dv]; Hq is a multiple of Hkv (grouped queries).
    tree_mask: bool [mq, mk] or [B, mq, mk], the tree keys that a node sees; calls that share one (a model's layers)
        take a SharedMask of it, so that additive masks are made once.
    prefix_length: int, or int[B] (a tensor on the CPU avoids a synchronisation). Row b sees keys 0 .. prefix[b] - 1,
        and of prefix[b] .. prefix[b] + mk - 1 those that its mask allows; keys beyond never change the result.
    backend: "auto" or one of `BACKENDS`.
    Returns [B, Hq, mq, dv] in the query's dtype; with `return_lse` also the log of the softmax's denominator,
    [B, Hq, mq]. ValueError where shapes, dtypes or lengths do not describe a tree.
    """
    prefix = prefix_list(prefix_length, query.shape[0])
    if isinstance(tree_mask, np.ndarray):
        tree_mask = torch.tensor(tree_mask)  # a copy: that of a tree is read-only
    mask = tree_mask if isinstance(tree_mask, SharedMask) else SharedMask(tree_mask)
    _check(query, key, value, mask.visible, prefix)
    if backend == "auto":
        backend = auto(query, key, value, prefix, return_lse)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = implementation(backend)(query, key, value, mask, prefix, scale, return_lse)
    return (output, lse) if return_lse else output


def auto(query: Tensor, key: Tensor, value: Tensor, prefix: list[int], return_lse: bool = False) -> str:
    """The name that `choose_backend` chooses, cached, since choosing takes long beside a small call."""
    longest = max(prefix)
    # On a GPU a call of one row takes as long as one of all rows; a processor does the same work either way.
    calls = len(prefix) if query.is_cuda and len(set(prefix)) > 1 else 1
    shift = max(0, longest.bit_length() - 3)  # prefixes of one eighth share an answer
    needs_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    sizes = query.shape, key.shape[1], value.shape[-1], shift, longest >> shift
    call = query.dtype, query.device, sizes, needs_gradients, return_lse, calls
    if call not in _REMEMBERED:
        if len(_REMEMBERED) >= MOST_REMEMBERED:
            _REMEMBERED.clear()
        _REMEMBERED[call] = choose_backend(query, key, value, longest, return_lse, calls)
    return _REMEMBERED[call]


def choose_backend(query: Tensor, key: Tensor, value: Tensor, prefix: int, return_lse: bool = False,
                   calls: int = 1) -> str:
    """The backend that `backend="auto"` takes for these inputs after a prefix of that length.

    The fastest in the nearest cell that notebook 03 measured on this kind of machine, among those that can serve such
    inputs. calls: those of a backend that serves rows of one length at a time. Where a processor cannot run its own
    kernel at all, the log says so once.
    """
    if query.device.type == "cpu" and query.dtype in onepass.ENTRIES and (reason := onepass.unavailable()):
        onepass.say_once(reason)
    return next(backend for backend in ranked(situation(query, key, prefix), calls=calls)
                if refusal(backend, query, key, value, return_lse) is None)


def prefix_list(prefix_length: int | Tensor, batch: int) -> list[int]:
    """Prefix lengths as B Python integers."""
    if isinstance(prefix_length, int):
        return [prefix_length] * batch
    given = torch.as_tensor(prefix_length)
    if given.is_floating_point():
        raise ValueError(f"prefix_length is {prefix_length}; give an int, or integers, one per row")
    lengths = given.reshape(-1).tolist()
    if len(lengths) == 1:
        return lengths * batch
    if len(lengths) != batch:
        raise ValueError(f"prefix_length has {len(lengths)} entries, the query {batch} rows; give one int, or one per "
                         "row")
    return lengths


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
