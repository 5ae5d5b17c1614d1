"""What made a number: code, versions, machine, models, prompts and parameters, as a fingerprint and as a record.

Neither contains the name of a host or user, or a path outside the project.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from lib.lab import environment, json_text

LIB = Path(__file__).resolve().parents[1]
HOME = LIB.parent
APART = {"tests", "explorers", "training", "__pycache__"}  # folders of lib that do not count for a fingerprint
RENDER = "DRAFT_TREES_RENDER"  # in the environment, while notebooks are executed on the tables of a finished run
LENGTH = 12  # hexadecimal digits of a fingerprint, enough that two runs do not share one by chance


def fingerprint(*, files: Iterable[str | Path] = (), parameters: Mapping[str, object] | None = None,
                device: str = "cpu") -> str:
    """Changes with everything that a row may depend on: lib's code, versions and machine too.

    files: files or folders, such as models, by content and relative position. parameters: names and plain values.
    """
    paths = [Path(os.path.abspath(path)) for path in files]
    # Relative to the folder that holds them all: names alone repeat, and a project may be moved.
    root = os.path.commonpath([path.parent for path in paths]) if paths else HOME
    return digest({
        "code": code_digest(),
        "files": {path.relative_to(root).as_posix(): file_digest(path) for path in paths},
        "parameters": dict(parameters or {}),
        "versions": versions(),
        "machine": machine(device),
    })[:LENGTH]


def digest(facts: object) -> str:
    """SHA-256 of plain values; the order of keys does not count."""
    text = json.dumps(facts, sort_keys=True, default=lambda value: getattr(value, "item", value.__str__)())  # of NumPy
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content, or of a folder's files with their names. FileNotFoundError if there is none."""
    path = Path(path)
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        return digest({file.relative_to(path).as_posix(): file_digest(file) for file in inside})
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_digest() -> str:
    """SHA-256 of lib's sources and tables, without those that make no row of a run: tests, explorers and training."""
    return digest({path.relative_to(LIB).as_posix(): file_digest(path) for path in LIB.rglob("*")
                   if path.is_file() and not APART & set(path.relative_to(LIB).parts)})


@cache
def versions() -> dict[str, str]:
    """Installed version of each package that requirements.txt names, that of the model included, or "absent"."""
    text = (HOME / "requirements.txt").read_text(encoding="utf-8")
    required = [*environment.required(text), *environment.optional(text, "model")]
    return {name: environment.installed(name) or "absent" for name, _ in required}


@cache
def machine(device: str = "cpu") -> dict[str, object]:
    """The machine's hardware and system (see `processor.machine`)."""
    from lib.lab import processor  # imports torch

    return processor.machine(device)


def commit() -> dict[str, object]:
    """The commit that is checked out, and whether files differ from it; "unknown" outside a checkout."""
    git, how = ["git", "-C", HOME], {"stderr": subprocess.DEVNULL, "text": True}
    try:
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], **how).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain", "--untracked-files=no"], **how).strip()
        return {"commit": head, "changed_files": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "changed_files": False}


def read(run_dir: str | Path) -> dict:
    """The record of a run, run.json. FileNotFoundError without one, ValueError where the file is no such record."""
    path = Path(run_dir) / "run.json"
    if not path.exists():
        raise FileNotFoundError(f"{run_dir} holds no run (no run.json); ./run_notebooks.sh makes one")
    try:  # what readers rely on is there
        record = json_text.loads(path.read_text(encoding="utf-8"))
        for stage in record["stages"].values():
            stage["fingerprint"], stage["finished"], stage["machine"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no record of a run: {error!r}") from None
    return record


def machine_of(run: Mapping, stage: str) -> dict[str, object]:
    """The machine on which a stage of a run was executed; for a stage without a record, that of the last command."""
    return run["stages"].get(stage, {}).get("machine", run["machine"])
