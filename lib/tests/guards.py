"""Golden numbers that must not change while `lib` is made smaller: `python -m lib.tests.guards [record]`.

`record` writes guards.json anew; without it the numbers are computed again and compared. They are: accepted draft
tokens of ten shapes on the shipped atlas, hashes of SmolLM2's weights and ids of texts after loading, and each drafter's
rounds in each number format. `times FOLDER FOLDER` times native passes of two checkouts in turns.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Sequence

import torch

from lib.models import load
from lib.decoding.loop import generate
from lib.drafters.controls import RandomDrafter
from lib.drafters.registry import make
from lib.forward.load import load_pair
from lib.models.dialogue import of_user
from lib.replay import atlas

try:
    from lib.trees import named
except ImportError:
    from lib.trees.growth.registry import shape_or_growth as named

FILE = Path(__file__).with_name("guards.json")
SHAPES = ("chain:1", "chain:4", "chain:8", "kary:2@6", "kary:2@14", "kary:3@12", "independent:2@8", "expansion:2,2,1",
          "kary:4@4", "independent:3@6")
TEXTS = ("Describe a harbour at dawn.", "def main(argv):\n\n    return 12 + 30  # why\n", "\n\n1. One\n2. Two",
         "Ünïcödé 漢字 <|im_end|> 1234567")
PROMPT = "Name the days of the week, then name them again in reverse order."
DRAFTERS = ("none", "model", "lookup", "sam", "ngrams", "eagle3", "dspark", "combined:behind=eagle3")
FORMATS = ("bfloat16", "float32", "int8", "stored")
ROWS, PASSES, TURNS = (1, 8, 16, 33), 30, 6


def digest(values) -> str:
    """A short hash of bytes or of anything that prints alike."""
    return hashlib.sha256(values if isinstance(values, bytes) else repr(values).encode()).hexdigest()[:16]


def pair_of(dtype: str):
    """SmolLM2 with its draft model; "stored" holds for the target alone, whose file has blocks."""
    return load_pair("smollm2-135m/nano", dtype="stored|auto" if dtype == "stored" else dtype)


def golden() -> dict:
    """All numbers."""
    numbers = {}
    for name in ("base", "small", "smollm2-135m"):
        recorded = atlas.load(f"{name}.continuation")
        for drafter in recorded.drafts:
            for shape in SHAPES:
                rows = atlas.evaluate(recorded, drafter, named(shape))
                numbers[f"atlas {name} {drafter} {shape}"] = [int(rows["rounds"].sum()), int(rows["accepted"].sum())]
    exact = load.load_pair("smollm2-135m", dtype="bfloat16")  # whose weights are in no panels
    for name, weight in sorted(exact.target.state_dict().items()):
        numbers[f"weight {name}"] = digest(weight.contiguous().view(torch.uint8).numpy().tobytes())
    for text in TEXTS:
        numbers[f"ids {text}"] = digest(exact.tokenizer(text)["input_ids"])
    for dtype in FORMATS:
        pair = pair_of(dtype)
        prompt = pair.tokenizer.apply_chat_template(of_user(PROMPT), add_generation_prompt=True, return_tensors="pt",
                                                    return_dict=True)["input_ids"]
        for spec in DRAFTERS:
            shape = "chain:0" if spec == "none" else "kary:2@6"
            done = generate(pair.target, make(spec, pair), prompt, shape=shape, max_new_tokens=32)
            numbers[f"text {dtype} {spec}"] = digest(done.sequences.tolist())
            numbers[f"rounds {dtype} {spec}"] = len(done.rounds)
    return numbers


def milliseconds(dtype: str) -> dict[int, float]:
    """The median time of verifying so many rows after 200 tokens, with random drafts."""
    pair, medians = pair_of(dtype), {}
    prompt = torch.randint(1000, 20000, (1, 200), generator=torch.Generator().manual_seed(0))
    for rows in ROWS:
        drafter = RandomDrafter(pair.vocabulary, torch.Generator().manual_seed(0))
        done = generate(pair.target, drafter, prompt, shape=f"chain:{rows - 1}", max_new_tokens=PASSES)
        medians[rows] = 1000 * median(one.verify_seconds for one in done.rounds[3:])
    return medians


def times(folders: Sequence[str]) -> None:
    """Prints the times of native passes of two checkouts, measured in turns, and their ratio."""
    taken = [[], []]
    for _ in range(TURNS):
        for folder, rows in zip(folders, taken):
            output = subprocess.run([sys.executable, __file__, "milliseconds"], cwd=folder, check=True,
                                    capture_output=True, text=True, env=os.environ | {"PYTHONPATH": folder}).stdout
            rows.append(json.loads(output.splitlines()[-1]))
    for key in taken[0][0]:
        one, other = (median(turn[key] for turn in turns) for turns in taken)
        print(f"{key}: {one:.2f} and {other:.2f} ms, {other / one:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        FILE.write_text(json.dumps(golden(), indent=0, sort_keys=True, ensure_ascii=False) + "\n")
    elif sys.argv[1:2] == ["milliseconds"]:
        print(json.dumps({f"{dtype} {rows}": value for dtype in FORMATS for rows, value in milliseconds(dtype).items()}))
    elif sys.argv[1:2] == ["times"]:
        times(sys.argv[2:])
    else:
        before, now = json.loads(FILE.read_text()), golden()
        differing = {key: (value, now.get(key)) for key, value in before.items() if now.get(key) != value}
        for key, values in differing.items():
            print(key, *values)
        print(f"{len(before) - len(differing)} of {len(before)} golden numbers are as they were")
        sys.exit(bool(differing))
