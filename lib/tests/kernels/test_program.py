"""The kernels against plain loops in C++ (`program.cpp`, whose first lines say how to run it for other processors)."""

import os
import subprocess
from pathlib import Path

import pytest

from lib.kernels import build
from lib.lab import processor
from lib.tests.instruction_sets import instruction_set  # noqa: F401 (a fixture of every test)

reason = build.unavailable()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


def test_the_kernels_agree_with_plain_loops(tmp_path):
    library = Path(build.library()._name)
    program = tmp_path / "program"
    options = *build.OPTIONS, *build.instructions(processor.flags())
    source = Path(__file__).with_name("program.cpp")
    subprocess.run([build.compiler(), *options, "-o", program, source, library], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"DYLD_LIBRARY_PATH": str(library.parent)})  # macOS searches there
    assert done.returncode == 0, done.stdout + done.stderr
