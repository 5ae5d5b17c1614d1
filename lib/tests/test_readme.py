"""Every Python snippet of README.md runs as it stands, each by itself, as a reader would paste it into a file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (HOME / "README.md").read_text(encoding="utf-8"), re.M | re.S)
NOT_RUN: dict[str, str] = {}  # text that a snippet contains -> why it cannot run here: GPU, network, another engine


def test_the_readme_has_snippets():
    assert SNIPPETS


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_of_the_readme_runs(number, tmp_path):
    snippet = SNIPPETS[number]
    reason = next((why for text, why in NOT_RUN.items() if text in snippet), None)
    if reason:
        pytest.skip(reason)
    environ = os.environ | {"PYTHONPATH": str(HOME), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{snippet}\n{done.stderr}"
