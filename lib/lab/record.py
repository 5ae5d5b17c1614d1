"""What a run remembers: run.json, which stages are finished and from what, and a lock against a second writer."""

import fcntl
import json
import os
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Iterator, Mapping

import nbformat

from lib.lab import parameters, provenance
from lib.lab.errors import UsageError
from lib.lab.parameters import RUN_DIR
from lib.lab.plan import Layout, Plan, Stage


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run's folder for this process; it is free again when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")
    except OSError as error:
        raise UsageError(f"run {folder.name} cannot be kept in {folder} ({error.strerror}); make that folder "
                         "writable") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"run {folder.name} is being made right now; wait for it, or take --run OTHER") from None
        yield


def load(folder: Path) -> dict:
    """The record so far; an empty one for a new run. UsageError where it cannot be read."""
    path = folder / "run.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"stages": {}}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}); delete it to make the run {folder.name} anew, or take "
                         "--run OTHER") from None


def save(folder: Path, record: Mapping) -> None:
    """Write run.json, in one step."""
    beside = folder / ".run.json"
    beside.write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")
    os.replace(beside, folder / "run.json")


def about(plan: Plan, before: Mapping) -> dict[str, object]:
    """The record with which a command begins: what it was before, and what holds now."""
    values = before.get("parameters", {}) | {stage.name: _values(plan.layout, stage) for stage in plan.stages}
    return dict(before) | {
        "run": plan.run,
        "profile": plan.profile.name,
        "command": ["./run_notebooks.sh", *plan.command],
        **provenance.commit(),
        "versions": provenance.versions(),
        "machine": provenance.machine(device()),
        "models": _digests(plan.layout.home / "data" / "models"),
        "prompts": _digests(plan.layout.home / "data" / "prompts"),
        "parameters": values,
        "seeds": {name: {key: value for key, value in own.items() if "seed" in key} for name, own in values.items()},
    }


def fingerprints(plan: Plan, record: Mapping) -> dict[str, str]:
    """Of each stage of the plan: what its notebook, code, parameters, models, prompts, versions and machine are, and
    the fingerprints of the stages before it (of all, or of those that its metadata name as `upstream`).
    """
    shared = {name: record[name] for name in ("versions", "machine", "models", "prompts")}
    stages = {stage.name: stage for stage in plan.stages}
    found = {name: entry["fingerprint"] for name, entry in record["stages"].items()}
    for position, name in enumerate(plan.known):
        if name in stages:
            notebook = nbformat.read(plan.layout.notebooks / f"{name}.ipynb", as_version=4)
            before = notebook.metadata.get("upstream", plan.known[:position])
            found[name] = provenance.digest({
                "cells": [(cell.cell_type, cell.source) for cell in notebook.cells],
                "code": provenance.code_digest(_imports(notebook)),
                "values": stages[name].values,
                "files": _named_files(stages[name], plan.layout.notebooks),
                "before": {other: found.get(other) for other in before},
                **shared,
            })[:provenance.LENGTH]
    return {name: found[name] for name in stages}


def finished(plan: Plan, record: Mapping, wanted: Mapping[str, str]) -> set[str]:
    """The stages that need not run: finished with this very fingerprint, or before the one to start from."""
    done = {name for name, mark in wanted.items() if record["stages"].get(name, {}).get("fingerprint") == mark
            and executed(plan, name).exists()}
    if plan.start is None:
        return done
    return {name for name in wanted if plan.known.index(name) < plan.known.index(plan.start)}


def executed(plan: Plan, name: str) -> Path:
    """The executed copy of a finished stage."""
    return plan.folder / "executed" / f"{name}.ipynb"


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def device() -> str:
    """cuda where a GPU is at hand, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _imports(notebook: nbformat.NotebookNode) -> set[str]:
    """The modules that a notebook's cells import."""
    found: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            plain = "\n".join(line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!")))
            try:
                found |= provenance.imports(plain)
            except SyntaxError:  # the notebook itself will say so
                continue
    return found


def _values(layout: Layout, stage: Stage) -> dict[str, object]:
    return parameters.defaults(layout.notebooks / f"{stage.name}.ipynb") | dict(stage.values)


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file or folder in a folder."""
    if not folder.is_dir():
        return {}
    return {path.name: provenance.file_digest(path) for path in sorted(folder.glob("[!.]*"))}


def _named_files(stage: Stage, notebooks: Path) -> dict[str, str]:
    """SHA-256 of the files and folders that a stage's values name, alone, in lists or as TARGET|DRAFTER."""
    texts = [text for value in stage.values.values() for text in (value if isinstance(value, list) else [value])]
    names = {name for text in texts if isinstance(text, str) for name in text.split("|")} - {stage.values.get(RUN_DIR)}
    return {name: provenance.file_digest(notebooks / name) for name in sorted(names)
            if "/" in name and (notebooks / name).exists()}
