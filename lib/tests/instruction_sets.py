"""A fixture that runs a module's tests with this processor's own instruction set, and with AVX2 where it has that; and
C++ of tests.
"""

import ctypes
from pathlib import Path

import pytest

from lib.kernels import build
from lib.lab import processor

QUICKLY = tuple(option.replace("-O3", "-O1") for option in build.OPTIONS)  # compiled in half the time
OWN = [name for name, (needed, _) in build.INSTRUCTION_SETS.items() if needed <= processor.flags()]


@pytest.fixture(autouse=True, scope="module", params=sorted({*OWN[:1], *OWN[-1:]}, key=OWN.index) or ["none"])
def instruction_set(request):
    """Kernels are compiled for this set, as on a processor that has nothing better."""
    needed = build.INSTRUCTION_SETS.get(request.param, (frozenset(),))[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.lab.processor.flags", lambda: frozenset(needed))
        patch.setattr(build, "OPTIONS", build.OPTIONS if request.param in OWN[:1] else QUICKLY)
        yield request.param


def emulated(name: str) -> ctypes.CDLL:
    """The library of a file of this folder: kernels on matrix units that are emulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "OPTIONS", QUICKLY)
        return build.library(Path(__file__).with_name(name))
