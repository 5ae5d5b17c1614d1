"""The backends of tree attention: the plain definition, and faster implementations that must agree with it.

A backend maps (query, key, value, mask: SharedMask, prefix: list of B ints, scale, return_lse, softcap) to (output, lse
or None), with the shapes of `tree_attention`, which has checked them. Keys beyond a row's own prefix and tree never
change its result, even if they are NaN. A backend's module is imported at its first use; its function `refusal`, if it
has one, says why it cannot serve given inputs on this machine.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Callable

from torch import Tensor

# name -> its module
BACKENDS = {
    "reference": "lib.attention.backends.folded",
    "folded": "lib.attention.backends.folded",
    "split": "lib.attention.backends.folded",
    "onepass": "lib.attention.backends.onepass",
    "triton": "lib.attention.backends.triton_backend",
}


@cache
def _module(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; choose one of {', '.join(['auto', *BACKENDS])}")
    return import_module(BACKENDS[name])


def implementation(name: str) -> Callable:
    """The function of a backend of `BACKENDS`. ValueError for another name."""
    return getattr(_module(name), name)


def refusal(name: str, query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Why a backend cannot serve these inputs on this machine; None if it can."""
    reason_of = getattr(_module(name), "refusal", None)
    return reason_of and reason_of(query, key, value)
