"""Snippets of README.md run as they stand, as a reader would paste them into a file; its commands are valid."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lib.__main__ import with_installed_models
from lib.lab import plan
from lib.study.settings import COSTS, NOTEBOOKS
from lib.tests import tiny_gguf

HOME = Path(__file__).resolve().parents[2]
README = (HOME / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
COMMANDS = re.findall(r"^\./run_notebooks\.sh ((?!.*engines).*--set .*)$", README, re.M)  # engines may be missing
RUN = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"


def test_snippets_of_the_readme_run(tmp_path):
    """In one process, which imports torch once; the folder is a user's."""
    files = [tmp_path / f"snippet_{number}.py" for number, _ in enumerate(SNIPPETS)]
    for file, snippet in zip(files, SNIPPETS):
        file.write_text(snippet, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": str(HOME), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", RUN, *files], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_are_valid(command, tmp_path, monkeypatch):
    """Those that set parameters, in a folder with the files that they name."""
    monkeypatch.chdir(tmp_path)
    tiny_gguf.write(Path("model.gguf"))
    Path("theirs.csv").write_bytes((COSTS / "xeon-amx.csv").read_bytes())
    for name in ("my.jsonl", "responses.jsonl"):
        Path(name).write_text("".join(f'{{"question_id": {number}, "turns": ["a"]}}\n' for number in range(12)))
    words = shlex.split(command, comments=True)
    given = [after for word, after in zip(words, words[1:]) if word == "--set"]
    rest = [word for word in words if word not in ("--set", "check", *given)] or ["05"]
    plan.checked(with_installed_models(plan.make(HOME, rest, NOTEBOOKS, given), given), NOTEBOOKS)
