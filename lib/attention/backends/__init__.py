"""The backends of tree attention: the plain definition, and faster implementations that must agree with it.

A backend maps (query, key, value, mask: SharedMask, prefix: list of B ints, scale, return_lse) to (output, lse or
None), with the shapes of `tree_attention`, which has checked them. Keys beyond a row's own prefix and tree never change
its result, even if they are NaN. A backend's module is imported at its first use; its function `refusal`, if it has
one, says why it cannot serve given inputs on this machine.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Callable

from torch import Tensor

BACKENDS = ("reference", "folded", "split", "onepass", "flex", "triton")
ELSEWHERE = {"reference": "folded", "split": "folded", "triton": "triton_backend"}  # modules of another name


@cache
def _module(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; choose one of {', '.join(['auto', *BACKENDS])}")
    return import_module(f"lib.attention.backends.{ELSEWHERE.get(name, name)}")


def implementation(name: str) -> Callable:
    """The function of a backend of `BACKENDS`. ValueError for another name."""
    return getattr(_module(name), name)


def refusal(name: str, query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> str | None:
    """Why a backend cannot serve these inputs on this machine, with or without log-sum-exps; None if it can."""
    reason_of = getattr(_module(name), "refusal", None)
    return reason_of and reason_of(query, key, value, return_lse)
