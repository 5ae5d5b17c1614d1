"""SmolLM2-135M-Instruct for tests; a test that needs it is skipped where its package is not installed."""

from functools import cache

import pytest

from lib.forward.load import load_pair
from lib.models import packages
from lib.models.load import Pair
from lib.models.registry import SMOLLM2

needs_real_model = pytest.mark.skipif(
    packages.SMOLLM2.file() is None, reason=f"needs {SMOLLM2}: {packages.SMOLLM2.install_command}")


@cache
def real_pair(dtype: str = "auto") -> Pair:
    """SmolLM2 alone, loaded once for all tests of a process."""
    return load_pair(SMOLLM2, dtype)
