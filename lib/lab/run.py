"""Carries out a plan: finished stages are skipped, each stage is recorded as it ends, the report comes last.

A run's folder has run.json (what made the run and which stages are finished), recommendation.json, executed notebooks,
tables, figures, report.html and its chapters.
"""

import fcntl
import json
import lzma
import os
import shutil
import sys
import time
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable, Iterable, Iterator, Mapping

import nbformat

from lib.lab import atomic_file, execute, provenance
from lib.lab.plan import REPORT, RUN_DIR, Layout, RunPlan, Stage, StageFailed, UsageError, defaults_of

FINDINGS = "<!-- findings: from the committed run -->", "<!-- end of findings -->"  # the lines around them in README.md
LARGE = 100_000  # bytes, from which a committed table is compressed
Say = Callable[[str], None]


def carry_out(plan: RunPlan, say: Say, facts: Callable[[Stage], Mapping] = lambda stage: {}) -> Path | None:
    """Run a plan's unfinished stages; returns the report's path, None without a report.

    facts: what the record of a finished stage holds besides. UsageError before anything has run; StageFailed where a
    notebook stops.
    """
    with locked(plan.folder):
        record = about(plan, load(plan.folder))
        if plan.has_report and not set(record["parameters"]) - {REPORT}:
            raise UsageError(f"{REPORT} reads tables of other notebooks, and run {plan.run} has none; run them too, or "
                             "name the run that has them with --run")
        wanted = fingerprints(plan, record)
        done = finished(plan, record, wanted)
        announce(plan, done, record["stages"], say)
        for number, stage in enumerate(plan.stages, 1):
            if stage.name in done:
                continue
            head = f"[{number}/{len(plan.stages)}] {stage.name}"
            if stage.apart and not adopt(plan, stage.name, record):
                say(f"{head} runs apart: ./run_notebooks.sh {plan.profile.name} {stage.name} --run {plan.run}")
                continue
            say(f"{head} ... started {time.strftime('%H:%M:%S')}, {_about(stage.seconds)}")
            entry = record["stages"].get(stage.name) if stage.apart else record["stages"].pop(stage.name, None)
            save(plan.folder, record)
            before, start = _versions(plan.folder), time.monotonic()
            try:
                with rendering() if stage.apart else nullcontext():
                    execute.run(plan.layout.notebooks / f"{stage.name}.ipynb", plan.executed(stage.name), stage.values,
                                show_progress=sys.stderr.isatty())
            except StageFailed as error:
                raise StageFailed(plan.as_typed(str(error))) from None
            seconds = time.monotonic() - start
            written = [path for path, version in _versions(plan.folder).items() if before.get(path) != version]
            record["stages"][stage.name] = entry if stage.apart else {
                "fingerprint": wanted[stage.name], "commit": record["commit"], "seconds": round(seconds, 1),
                "machine": record["machine"], "finished": now(),
                "tables": {path.name: provenance.file_digest(path) for path in sorted(written)},
                **facts(stage)}
            save(plan.folder, record)
            say(f"{head} done in {spoken(seconds)}")
        save(plan.folder, record | {"finished": now()})
        report = plan.folder / "report.html"
        if plan.has_report and (REPORT not in done or not report.exists()):
            if not plan.executed(REPORT).exists():
                raise UsageError(f"{REPORT} has never finished in run {plan.run}; run it without --from")
            execute.pages(plan.folder / "executed", plan.folder)
        if plan.reference:
            make_reference(plan.layout, plan.folder, say)
        return report if plan.has_report else None


def render(layout: Layout, folder: Path, say: Say, reference: bool = False) -> Path:
    """Execute the notebooks that a finished run has, and the report, on the run's tables without models; write their
    copies and pages, and into run.json by which commit. Returns the report's path. UsageError for a folder without run.
    """
    if not (folder / "run.json").exists():
        raise UsageError(f"{folder} holds no run (no run.json); name the folder of a run, such as data/runs/cpu")
    with locked(folder):
        record = load(folder)
        names = [name for name in layout.stages() if name in record["stages"] or name == REPORT]
        for name in names:
            notebook = layout.notebooks / f"{name}.ipynb"
            known = {key: value for key, value in record.get("parameters", {}).get(name, {}).items()
                     if key in defaults_of(notebook)}
            with rendering():
                execute.run(notebook, folder / "executed" / f"{name}.ipynb",
                            known | {RUN_DIR: os.path.relpath(folder, layout.notebooks)})
            say(f"rendered {name}")
        save(folder, record | {"rendered": provenance.commit() | {"finished": now(), "notebooks": names}})
        execute.pages(folder / "executed", folder)
        if reference:
            make_reference(layout, folder, say)
    return folder / "report.html"


@contextmanager
def rendering() -> Iterator[None]:
    """Notebooks that are executed inside show the tables that are there, and measure nothing."""
    os.environ[provenance.RENDER] = "1"
    try:
        yield
    finally:
        del os.environ[provenance.RENDER]


def adopt(plan: RunPlan, name: str, record: dict) -> bool:
    """Whether the run has a notebook that runs apart: its own, or else the tables, files and record of the committed
    run, which are copied into it where no parameter is set otherwise.
    """
    source = plan.layout.home / "data" / "results" / "reference"
    as_it_is = not any(word.startswith("--set") for word in plan.command)
    if name not in record["stages"] and as_it_is and (source / "run.json").exists():
        if entry := provenance.read(source)["stages"].get(name):
            record["stages"][name] = entry
            names = [name.removesuffix(".xz") for name in entry["tables"]]  # large ones were compressed since
            for path in [*(path for name in names for path in source.glob(f"tables/{name}*")), *source.glob("*.json")]:
                if not (target := plan.folder / path.relative_to(source)).exists():
                    target.parent.mkdir(exist_ok=True)
                    shutil.copyfile(path, target)
    return name in record["stages"]


def resuming(plan: RunPlan) -> list[str]:
    """The command that resumes a stopped run: the same one, but with --from at the first unfinished stage."""
    words, recorded = ["./run_notebooks.sh", *plan.command], load(plan.folder)["stages"]
    first = next((stage.name for stage in plan.stages if stage.name not in recorded), None)
    if "--from" in words and first:
        words[words.index("--from") + 1] = first
    return words


def announce(plan: RunPlan, done: set[str], recorded: Mapping[str, Mapping], say: Say) -> None:
    """Say which stages will run, and about how long they take."""
    left = [stage.seconds for stage in plan.stages if stage.name not in done]
    estimates = [seconds for seconds in left if seconds is not None]
    say(f"profile {plan.profile.name}{': ' + plan.profile.about if plan.profile.about else ''}")
    say(f"run {plan.run}, in {plan.folder.relative_to(plan.layout.home)}: {len(left)} of {len(plan.stages)} notebooks "
        f"to run{f', about {spoken(sum(estimates))}' if estimates else ''}")
    for stage in plan.stages:
        state = _about(stage.seconds)
        if stage.name in done:
            entry = recorded.get(stage.name)
            state = f"finished {entry['finished']}, skipped" if entry else "skipped; it has never finished in this run"
        say(f"  {stage.name:<22} {state}")


def spoken(seconds: float) -> str:
    """A duration in words."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _about(seconds: float | None) -> str:
    return f"about {spoken(seconds)}" if seconds is not None else "of unknown length"


def _versions(folder: Path) -> dict[Path, tuple[int, int]]:
    """What changes of each table's file whenever it is written: its inode and time."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("tables/[!.]*")}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Reserves a run's folder for this process, until the process ends. UsageError where another process has it."""
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
    """The record of a run, an empty one for a new run. UsageError where run.json cannot be read."""
    try:
        return provenance.read(folder)
    except FileNotFoundError:
        return {"stages": {}}
    except (OSError, ValueError) as error:
        raise UsageError(f"{error}; delete the file to make the run {folder.name} anew, or take --run OTHER") from None


def save(folder: Path, record: Mapping) -> None:
    """Write run.json, in one step."""
    atomic_file.replace(folder / "run.json", (json.dumps(record, indent=2, default=str) + "\n").encode())


def about(plan: RunPlan, before: Mapping) -> dict[str, object]:
    """The record with which a command begins: the earlier one, and what holds now."""
    import torch

    parameters = before.get("parameters", {}) | {stage.name: stage.parameters for stage in plan.stages}
    data = plan.layout.home / "data"
    return {"started": now(), **before} | {
        "run": plan.run, "profile": plan.profile.name, "command": ["./run_notebooks.sh", *plan.command],
        **provenance.commit(), "versions": provenance.versions(),
        "machine": provenance.machine("cuda" if torch.cuda.is_available() else "cpu"),
        **{name: {path.name: provenance.file_digest(path) for path in sorted((data / name).glob("[!.]*"))}
           for name in ("models", "prompts")},
        "parameters": parameters,
        "seeds": {name: {key: values[key] for key in values if "seed" in key} for name, values in parameters.items()},
    }


def fingerprints(plan: RunPlan, record: Mapping) -> dict[str, str]:
    """The fingerprint of each stage of the plan: of its notebook's cells, lib's code, parameters, the files that these
    name (as texts, in lists or as TARGET|DRAFTER), models, prompts, versions, machine, and the fingerprints of the
    stages before it (all, or those that the notebook's metadata lists as `upstream`).
    """
    shared = {name: record[name] for name in ("versions", "machine", "models", "prompts")}
    stages, code = {stage.name: stage for stage in plan.stages}, provenance.code_digest()
    marks = {name: entry["fingerprint"] for name, entry in record["stages"].items()}
    for position, name in enumerate(plan.known):
        if name in stages:
            notebook = nbformat.read(plan.layout.notebooks / f"{name}.ipynb", as_version=4)
            before, values = notebook.metadata.get("upstream", plan.known[:position]), stages[name].values
            texts = [text for value in values.values() for text in (value if isinstance(value, list) else [value])]
            paths = {path for text in texts if isinstance(text, str) for path in text.split("|") if "/" in path}
            files = {path: provenance.file_digest(plan.layout.notebooks / path)
                     for path in paths - {values.get(RUN_DIR)} if (plan.layout.notebooks / path).exists()}
            marks[name] = provenance.digest({
                "cells": [(cell.cell_type, cell.source) for cell in notebook.cells], "code": code, "values": values,
                "files": files, "before": {other: marks.get(other) for other in before}, **shared})[:provenance.LENGTH]
    return {name: marks[name] for name in stages}


def finished(plan: RunPlan, record: Mapping, wanted: Mapping[str, str]) -> set[str]:
    """The stages that need not run: those before --from, or without it those that finished with this fingerprint and
    whose notebook and tables are still as they left them.
    """
    if plan.start is not None:
        return {name for name in wanted if plan.known.index(name) < plan.known.index(plan.start)}
    there = {path.name: provenance.file_digest(path) for path in plan.folder.glob("tables/[!.]*")}
    same = {name: record["stages"][name] for name, mark in wanted.items()
            if record["stages"].get(name, {}).get("fingerprint") == mark and plan.executed(name).exists()}
    return {name for name, entry in same.items() if entry.get("tables", {}).items() <= there.items()}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def make_reference(layout: Layout, folder: Path, say: Say) -> None:
    """Make a run the committed one: its tables, record, figures, executed notebooks, report, and README's findings."""
    home, readme, executed = layout.home, layout.home / "README.md", layout.notebooks / "executed"
    report = nbformat.read(folder / "executed" / f"{REPORT}.ipynb", as_version=4)
    text = with_findings(readme.read_text(encoding="utf-8"), report)
    results = home / "data" / "results" / "reference"
    shown = f"{REPORT.partition('_')[0]}_*"  # figures that the report shows
    _replace(folder / "tables", results / "tables", ("*.csv", "*.csv.xz"))
    _replace(folder, results, ("*.json", "columns.csv"))  # what made the run, what it recommends
    _replace(folder / "figures", home / "figures", (f"{shown}.png", f"{shown}.svg"))
    _replace(folder / "executed", executed, ("[0-9]*.ipynb",))
    for path in results.glob("tables/*.csv"):
        if path.stat().st_size > LARGE:
            path.with_suffix(".csv.xz").write_bytes(lzma.compress(path.read_bytes()))
            path.unlink()
    execute.pages(executed, executed)
    readme.write_text(text, encoding="utf-8")
    say("reference: the files in data/results/reference, figures and notebooks/executed, and the findings in README.md "
        "are of this run; look at them, then commit them")


def with_findings(readme: str, report: nbformat.NotebookNode) -> str:
    """README.md with the executed report's first Markdown output between its two marks. UsageError where it is not."""
    begin, end = map(readme.find, FINDINGS)
    if not 0 <= begin < end:
        raise UsageError(f"README.md lacks the lines {' and '.join(FINDINGS)}, between which the findings go")
    outputs = [output.get("data", {}) for cell in report.cells for output in cell.get("outputs", [])]
    opening = next((data["text/markdown"] for data in outputs if "text/markdown" in data), None)
    if opening is None:
        raise UsageError("the report shows no Markdown, of which the first becomes README.md's findings; run it to its "
                         "end first")
    return f"{readme[:begin]}{FINDINGS[0]}\n{opening}\n{readme[end:]}"


def _replace(source: Path, target: Path, patterns: Iterable[str]) -> None:
    """Put a folder's files of these patterns, but for failed notebooks, in the place of the target's."""
    if source.resolve() == target.resolve():
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in [path for pattern in patterns for path in target.glob(pattern)]:
        path.unlink()
    for path in [path for pattern in patterns for path in source.glob(pattern) if ".failed." not in path.name]:
        shutil.copyfile(path, target / path.name)
