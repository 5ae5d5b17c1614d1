"""A call loads only the modules that it needs."""

import subprocess
import sys

CALL = """
import sys
from pathlib import Path
import torch
from lib.decoding import generate
from lib.drafters import make
from lib.models import load_pair

pair = load_pair("small/tiny")
generate(pair.target, make("model", pair), torch.tensor([[1, 2, 3]]), shape="chain:4", max_new_tokens=8)
ours = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "lib"}
print(len(ours), sum(Path(file).read_text(encoding="utf-8").count("\\n") for file in ours.values()))
print(*sorted(ours))
"""


def test_a_call_with_a_language_model_loads_few_modules():
    done = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, check=True)
    counts, names = done.stdout.splitlines()
    modules, lines = map(int, counts.split())
    assert modules <= 70 and lines <= 7_700, f"{modules} modules of {lines} lines: {names}"
    drafters = {name for name in names.split() if name.startswith("lib.drafters.")}
    assert drafters == {f"lib.drafters.{name}" for name in (
        "drafter", "filling", "growing", "language_model", "registry", "vocabulary")}
