"""What made a number, as a fingerprint and as a record, without names of hosts and users."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from click import UsageError

from lib.lab import environment

LIB = Path(__file__).resolve().parents[1]
HOME = LIB.parent
APART = {"tests", "explorers", "training", "__pycache__"}  # folders of lib that do not count for a fingerprint
MODULES = {"PyYAML": "yaml", "beautifulsoup4": "bs4"}  # of packages that have another name than theirs
RENDER = "DRAFT_TREES_RENDER"  # in the environment, while notebooks are executed on the tables of a finished run


def is_rendering() -> bool:
    """Whether this process only draws the tables of a finished run."""
    return RENDER in os.environ


def fingerprint(*, files: Iterable[str | Path], parameters: Mapping[str, object], device: str = "cpu") -> str:
    """12 hexadecimal digits that change with all that a row may depend on: lib's code, versions and machine too.

    files: files or folders, by content and position relative to each other. parameters: plain values.
    """
    paths = [Path(os.path.abspath(path)) for path in files]
    root = os.path.commonpath([path.parent for path in paths]) if paths else HOME
    return digest({
        "code": file_digest(LIB, APART),
        "files": {path.relative_to(root).as_posix(): file_digest(path) for path in paths},
        "parameters": dict(parameters),
        "versions": versions(),
        "machine": machine(device),
    })[:12]


def digest(facts: object) -> str:
    """SHA-256 of plain values; the order of keys does not count."""
    text = json.dumps(facts, sort_keys=True, default=lambda value: getattr(value, "item", value.__str__)())  # of NumPy
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: str | Path, apart: Collection[str] = ("__pycache__",)) -> str:
    """SHA-256 of a file's content, or of a folder's files with their names, but for those in folders of the names
    `apart`. FileNotFoundError if there is none.
    """
    path = Path(path)
    if path.is_dir():
        inside = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
        return digest({name.as_posix(): file_digest(file) for name, file in inside.items()
                       if not {*apart} & {*name.parts}})
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def versions() -> dict[str, str]:
    """Installed version, or "absent", of each package that requirements.txt names, that of the model included."""
    text = (HOME / "requirements.txt").read_text(encoding="utf-8")
    required = [*environment.required(text), *environment.required(text, "model")]
    return {name: environment.installed(name) or "absent" for name, _ in required}


def imported() -> dict[str, str]:
    """The versions of Python, and of those of `versions` that this process has imported, as the modules say."""
    modules = {name: sys.modules.get(MODULES.get(name, name.replace("-", "_"))) for name in versions()}
    return {"python": platform.python_version()} | {
        name: getattr(module, "__version__", versions()[name]) for name, module in modules.items() if module}


@cache
def machine(device: str = "cpu") -> dict[str, object]:
    """The machine's hardware and system (see `processor.machine`)."""
    from lib.lab import processor  # imports torch

    return processor.machine(device)


def commit() -> dict[str, object]:
    """The commit that is checked out, and whether files differ from it; "unknown" outside a checkout."""
    command = ["git", "-C", HOME, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        head, _, changed = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip().partition("-")
        return {"commit": head, "changed_files": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "changed_files": False}


def read(run_dir: str | Path) -> dict:
    """The record of a run, run.json. UsageError where there is none."""
    path = Path(run_dir) / "run.json"
    if not path.exists():
        raise UsageError(f"{run_dir} holds no run (no run.json); name the folder of one, such as data/runs/cpu")
    return json.loads(path.read_text(encoding="utf-8"))
