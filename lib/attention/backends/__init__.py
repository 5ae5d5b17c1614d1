"""The backends of tree attention: the plain definition, and faster forms that must agree with it; one file each.

A backend maps (query, key, value, mask: SharedMask, prefix: list of B ints, scale, return_lse) to (output, lse or
None), with the shapes of `attention.tree_attention`, which has checked them. What lies behind a row's own prefix and
tree never leaks into its result, NaN included. `REFUSALS[name](query, key, value, return_lse)` says why a backend cannot serve
such inputs on this machine, or None; those without an entry serve all.
"""

from typing import Callable

from torch import Tensor

from lib.attention.backends import flex, onepass, triton_backend
from lib.attention.backends.folded import attend_slots, folded
from lib.attention.backends.mask import SharedMask
from lib.attention.backends.merge import merge
from lib.attention.backends.reference import reference
from lib.attention.backends.split import split

__all__ = ["BACKENDS", "REFUSALS", "SharedMask", "attend_slots", "merge", "refusal"]

BACKENDS: dict[str, Callable] = {
    "reference": reference,
    "folded": folded,
    "split": split,
    "onepass": onepass.onepass,
    "flex": flex.flex,
    "triton": triton_backend.triton,
}
REFUSALS: dict[str, Callable[[Tensor, Tensor, Tensor, bool], str | None]] = {
    "onepass": onepass.refusal,
    "flex": flex.refusal,
    "triton": triton_backend.refusal,
}


def refusal(name: str, query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> str | None:
    """Why a backend cannot serve these inputs on this machine, perhaps with log-sum-exps; None if it can."""
    return REFUSALS[name](query, key, value, return_lse) if name in REFUSALS else None
