"""What made a number: code, versions, machine, models, prompts, parameters; to read, and as a fingerprint to compare.

Nothing here names a host, a user or a path outside the project.
"""

import ast
import json
import os
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Iterable, Iterator, Mapping

from lib.lab import environment

LIB = Path(__file__).resolve().parents[1]
HOME = LIB.parent
LENGTH = 12  # hexadecimal digits of a fingerprint: no two runs of one machine meet by chance


def fingerprint(*, code: Iterable[ModuleType | str] = (), files: Iterable[str | Path] = (),
                parameters: Mapping[str, object] | None = None, device: str = "cpu") -> str:
    """12 hexadecimal digits that change with whatever a row depends on.

    code: modules of lib (those that they import count with them); files: files or folders, models and prompts say, by
    content and by where they lie to one another; parameters: names and plain values. Versions of the requirements and
    the machine always count.
    """
    return digest({
        "code": code_digest(name if isinstance(name, str) else name.__name__ for name in code),
        "files": _digests(files),
        "parameters": dict(parameters or {}),
        "versions": versions(),
        "machine": machine(device),
    })[:LENGTH]


def _digests(files: Iterable[str | Path]) -> dict[str, str]:
    """Digests by path from the folder that holds them all: names alone repeat, and a project may be moved."""
    paths = [Path(os.path.abspath(path)) for path in files]
    root = os.path.commonpath([path.parent for path in paths]) if paths else HOME
    return {path.relative_to(root).as_posix(): file_digest(path) for path in paths}


def digest(facts: object) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return sha256(json.dumps(facts, sort_keys=True, default=_plain).encode()).hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content, or of a folder's files with their names. FileNotFoundError where none is."""
    path = Path(path)
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        return digest({file.relative_to(path).as_posix(): file_digest(file) for file in inside})
    with open(path, "rb") as file:
        found = sha256()
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


# ---------------------------------------------------------------------------------------------------------------- code


def code_digest(modules: Iterable[str]) -> str:
    """SHA-256 of the named modules of lib and of all of lib that they import."""
    return digest({path.relative_to(LIB).as_posix(): file_digest(path) for path in closure(modules)})


def imports(source: str) -> set[str]:
    """The modules, lib's and other, that a Python source names in an import, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return found


def closure(modules: Iterable[str]) -> list[Path]:
    """The files of lib behind these modules and behind all that they import; names outside lib are passed over.

    Imports that are spelt as text at run time are not seen.
    """
    seen: set[Path] = set()
    waiting = [path for name in modules for path in _files_of(name)]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [file for name in imports(path.read_text(encoding="utf-8")) for file in _files_of(name)]
    return sorted(seen)


def _files_of(module: str) -> Iterator[Path]:
    """The source files that importing `lib.a.b` runs: each package on the way, and the module."""
    first, *rest = module.split(".")
    if first != "lib":
        return
    folder = LIB
    for part in [None, *rest]:
        folder = folder / part if part else folder
        for candidate in (folder / "__init__.py", folder.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


# ----------------------------------------------------------------------------------------------- versions, machine, run


@cache
def versions() -> dict[str, str]:
    """Installed versions of what requirements.txt names; "absent" where something is missing."""
    asked = environment.wanted((HOME / "requirements.txt").read_text(encoding="utf-8"))
    return {name: environment.installed(name) or "absent" for name, _ in asked}


@cache
def machine(device: str = "cpu") -> dict[str, object]:
    """What the machine is (see `timing.machine`)."""
    from lib.lab import timing

    return timing.machine(device)


def commit() -> dict[str, object]:
    """The commit that is checked out, and whether files differ from it; "unknown" outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        return {"commit": head, "changed_files": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "changed_files": False}


def read(run_dir: str | Path) -> dict:
    """The record of a run, run.json. FileNotFoundError names the folder and the remedy."""
    path = Path(run_dir) / "run.json"
    if not path.exists():
        raise FileNotFoundError(f"{run_dir} holds no run (no run.json); ./run_notebooks.sh makes one")
    return json.loads(path.read_text(encoding="utf-8"))


def machine_of(run: dict, stage: str) -> dict[str, object]:
    """The machine on which a stage of a run was executed, by its record; of a stage that it lacks, the last one's."""
    return run["stages"].get(stage, {}).get("machine", run["machine"])


def machines(run: dict) -> str:
    """In words, the machine of a run; where its stages ran on several, each with its stages."""
    by_words: dict[str, list[str]] = {}
    for stage in sorted(run["stages"]):
        known = machine_of(run, stage)
        words = "{processor} ({vector_units}, matrix units: {matrix_units}), {cores} cores, {threads} threads"
        words = words.format(**known) + (f", {known['gpu']}" if "gpu" in known else "")
        by_words.setdefault(words, []).append(stage)
    if len(by_words) == 1:
        return next(iter(by_words))
    return "; ".join(f"{', '.join(stages)}: {words}" for words, stages in by_words.items())


def _git(*arguments: str) -> str:
    asked = subprocess.run(["git", "-C", str(HOME), *arguments], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def _plain(value: object) -> object:
    """Paths, tuples, numpy's numbers and the like as JSON has them."""
    return value.item() if hasattr(value, "item") else str(value)
