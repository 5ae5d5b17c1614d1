"""Everything that reads a file of a user's, with good files to begin from: for tests on drawn bytes (`test_readers`) and
for `python -m lib.tests.files.fuzz READER`, which follows coverage.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from transformers import AutoTokenizer

from lib.drafters import heads
from lib.drafters.heads import files
from lib.lab import plan, provenance
from lib.lab.plan import UsageError
from lib.models import SHIPPED, prompts
from lib.models.load import load_pair
from lib.models.checks import PairError
from lib.replay import logs, trace
from lib.study import costs_files
from lib.tests import small_models
from lib.tests.replay.test_replay import synthetic
from lib.training import heads as training

NOTEBOOKS = ("01_shapes", "02_acceptance")
TARGET = small_models.llama(0, hidden=16, layers=2)
TOKENIZER = AutoTokenizer.from_pretrained(SHIPPED / "tiny")


@dataclass(frozen=True)
class Reader:
    """A function of a file's path, the errors that it may raise, the file's name, and the bytes of good files."""

    read: Callable[[Path], object]
    refusals: tuple[type[Exception], ...]
    name: str
    good: Callable[[], list[bytes]]

    def refusal(self, data: bytes) -> str:
        """What is said of a file of these bytes; empty where it is read. Any other error is raised."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / self.name
            path.write_bytes(data)
            beside = set(Path(folder).rglob("*"))
            try:
                self.read(path)
            except self.refusals as error:
                return str(error) or type(error).__name__
            finally:
                assert set(Path(folder).rglob("*")) == beside, "a file was written"
        return ""


def lines(*rows: object) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def good_prompts() -> list[bytes]:
    return [lines({"question_id": 1, "category": "a", "turns": ["Hello <script>", "and?"], "answers": ["x"]}),
            lines({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é"}]}),
            lines({"task_id": "HumanEval/0", "prompt": "def f():\n"})]


def good_logs() -> list[bytes]:
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    choice = {"message": said, "finish_reason": "stop", "token_ids": [1, 2]}
    pair = {"request": {"messages": [asked]}, "response": {"choices": [choice]}}
    call = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    exact = {"request": {"messages": [asked]}, "response": {
        "choices": [choice | {"message": call, "prompt_token_ids": [3]}], "usage": {"completion_tokens": 2}}}
    return [lines(*[{"messages": [asked, said]}] * 3, pair), lines(exact)]


def good_inputs() -> list[bytes]:
    body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0}
    return [lines({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})]


def read_log(path: Path, inputs: str | Path = "") -> object:
    """A log as tokens of a small tokenizer."""
    return logs.read(path, TOKENIZER, eos_token_id=0, inputs=inputs)


def read_inputs(path: Path) -> object:
    """A batch's output with this input file."""
    answer = {"message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}
    with TemporaryDirectory() as folder:
        log = Path(folder) / "output.jsonl"
        log.write_bytes(lines({"custom_id": "a", "response": {"body": {"choices": [answer]}}}))
        return read_log(log, path)


def good_costs() -> list[bytes]:
    return [path.read_bytes() for path in costs_files.FOLDER.glob("published-*.csv")]


def good_profiles() -> list[bytes]:
    return [b"about: mine\nseconds: {01_shapes: 3}\nonline: false\n02_acceptance:\n  pairs: [base]\n  budgets: [1, 2]\n"]


def good_heads(kind: str) -> list[bytes]:
    """Configurations, and files of weights."""
    with TemporaryDirectory() as folder:
        files.save(heads.KINDS[kind](training.settings(kind, TARGET.config)), Path(folder))
        return [(Path(folder) / name).read_bytes() for name in ("config.json", "model.safetensors")]


def read_head(kind: str) -> Callable[[Path], object]:
    """Reads config.json or model.safetensors of a head whose other file is good."""
    config, weights = good_heads(kind)

    def read(path: Path) -> object:
        with TemporaryDirectory() as folder:
            head, data = Path(folder), path.read_bytes()
            is_config = data[:1] == b"{" or not data[8:9] == b"{"
            (head / "config.json").write_bytes(data if is_config else config)
            (head / "model.safetensors").write_bytes(weights if is_config else data)
            return files.load(kind, head, TARGET)

    return read


def good_models() -> list[bytes]:
    return [(provenance.HOME / "data" / "models" / "tiny" / "config.json").read_bytes()]


def read_model(path: Path) -> object:
    """A folder of a model with this config.json, and the tokenizer of the shipped family."""
    base = provenance.HOME / "data" / "models" / "tiny"
    with TemporaryDirectory() as folder:
        for file in base.iterdir():
            if file.name != "config.json":
                (Path(folder) / file.name).symlink_to(file)
        (Path(folder) / "config.json").write_bytes(path.read_bytes())
        return load_pair(folder, dtype="float32")


def good_traces() -> list[bytes]:
    with TemporaryDirectory() as folder:
        trace.save(synthetic(np.random.default_rng(0)), Path(folder) / "t.npz")
        return [(Path(folder) / "t.npz").read_bytes()]


@cache
def readers() -> dict[str, Reader]:
    """All of them, by name."""
    found = {
        "prompts": Reader(prompts.rows, (ValueError, LookupError), "p.jsonl", good_prompts),
        "logs": Reader(read_log, (ValueError,), "l.jsonl", good_logs),
        "inputs": Reader(read_inputs, (ValueError,), "i.jsonl", good_inputs),
        "costs": Reader(costs_files.read, (ValueError,), "c.csv", good_costs),
        "profile": Reader(lambda path: plan.load_profile(path, NOTEBOOKS), (UsageError,), "p.yaml", good_profiles),
        "model": Reader(read_model, (PairError,), "config.json", good_models),
        "run": Reader(lambda path: provenance.read(path.parent), (ValueError,), "run.json",
                      lambda: [(provenance.HOME / "data" / "results" / "reference" / "run.json").read_bytes()]),
        "trace": Reader(trace.load, (ValueError,), "t.npz", good_traces),
    }
    return found | {f"head:{kind}": Reader(read_head(kind), (ValueError,), "head", lambda kind=kind: good_heads(kind))
                    for kind in heads.KINDS}


def checked(name: str, data: bytes) -> str:
    """A reader's refusal, which is one line that a user can be shown."""
    told = readers()[name].refusal(data)
    assert "\n" not in told and "Traceback" not in told, told
    return told


def good_files() -> Iterator[tuple[str, bytes]]:
    """Every good file with its reader's name."""
    for name, reader in readers().items():
        yield from ((name, data) for data in reader.good())
