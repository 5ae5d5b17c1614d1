"""Carries out a plan: every notebook is executed and recorded as it ends; the report comes last.

A run's folder has run.json (what made the run, and which notebooks have ended), recommendation.json, executed
notebooks, tables, figures, report.html and its chapters. There is one resume: a notebook measures the rows that its
tables lack, so the same command goes on where a stopped one was, and draws a complete run again.
"""

import fcntl
import json
import lzma
import os
import shutil
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

import nbformat
from click import UsageError

from lib.lab import atomic_file, execute, provenance
from lib.lab.plan import REPORT, RUN_DIR, RunPlan

FINDINGS = "<!-- findings: from the committed run -->", "<!-- end of findings -->"  # the lines around them in README.md
LARGE = 100_000  # bytes, from which a committed table is compressed
Say = Callable[[str], None]


def carry_out(plan: RunPlan, say: Say) -> None:
    """Runs the notebooks of a plan, and records each as it ends. RuntimeError where one stops."""
    with lock(plan.folder):
        is_new = not (plan.folder / "run.json").exists()
        record = ({"stages": {}, "parameters": {}} if is_new else provenance.read(plan.folder)) | facts(plan)
        record["parameters"] |= plan.stages
        say(f"profile {plan.profile_name}: {plan.profile.about}\nrun {plan.folder.name}, in "
            f"{plan.folder.relative_to(plan.home)}: {', '.join(plan.stages)}; rows that are measured already are kept")
        for number, (name, values) in enumerate(plan.stages.items(), 1):
            head, estimate = f"[{number}/{len(plan.stages)}] {name}", plan.profile.seconds.get(name)
            about = f", about {timedelta(seconds=estimate)}" if estimate else ""
            say(f"{head} ... started {time.strftime('%H:%M:%S')}{about}")
            record["stages"].pop(name, None)
            save(plan.folder, record)
            start = time.monotonic()
            imported = execute.run(plan.home / "notebooks" / f"{name}.ipynb", plan.folder / "executed", values)
            seconds = round(time.monotonic() - start, 1)
            record["stages"][name] = {"commit": record["commit"], "machine": record["machine"], "seconds": seconds,
                                      "imported": imported, "finished": datetime.now(UTC).isoformat(timespec="seconds")}
            save(plan.folder, record)
            say(f"{head} done in {timedelta(seconds=round(seconds))}")


def render(home: Path, folder: Path, say: Say) -> None:
    """Executes the notebooks that a run has finished, and the report, on the run's tables; `provenance.RENDER` is set,
    so that they measure nothing. UsageError for a folder without run.
    """
    record = provenance.read(folder)
    with lock(folder):
        for name in sorted({*record["stages"], REPORT}):
            notebook = home / "notebooks" / f"{name}.ipynb"
            values = record["parameters"].get(name, {}) | {RUN_DIR: os.path.relpath(folder, notebook.parent)}
            execute.run(notebook, folder / "executed", values)
            say(f"rendered {name}")


def lock(folder: Path) -> TextIO:
    """Reserves a run's folder for this process until the file is closed. UsageError where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / ".lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"run {folder.name} is being made right now; wait for it, or take --run OTHER") from None
    return file


def save(folder: Path, record: Mapping) -> None:
    """Writes run.json, in one step."""
    atomic_file.replace(folder / "run.json", (json.dumps(record, indent=2, default=str) + "\n").encode())


def facts(plan: RunPlan) -> dict[str, object]:
    """What makes a run, as the record has it."""
    devices = {values.get("device", "cpu") for values in plan.stages.values()} - {"cpu"}
    return {
        "run": plan.folder.name, "profile": plan.profile_name, **provenance.commit(), "versions": provenance.versions(),
        "machine": provenance.machine(min(devices, default="cpu")),
        **{name: {path.name: provenance.file_digest(path) for path in sorted((plan.home / "data" / name).glob("[!.]*"))}
           for name in ("models", "prompts")}}


def make_reference(home: Path, folder: Path, say: Say) -> None:
    """Makes a run the committed one: its tables, record, figures, executed notebooks, report, and README's findings."""
    readme, results, executed = (home / path for path in ("README.md", "data/results/reference", "notebooks/executed"))
    report = nbformat.read(folder / "executed" / f"{REPORT}.ipynb", as_version=4)
    text = with_findings(readme.read_text(encoding="utf-8"), report)
    sources = "\n".join(cell.source for cell in report.cells)
    replace(results, folder, "*.json")
    replace(results / "tables", folder / "tables", "*.csv*")
    replace(home / "figures", folder / "figures", "[0-9]*", lambda path: f'"{path.stem}"' in sources)
    replace(executed, folder / "executed", "[0-9]*.ipynb")
    execute.pages(executed, executed)
    readme.write_text(text, encoding="utf-8")
    say("reference: the files in data/results/reference, figures and notebooks/executed, and the findings in README.md "
        "are of this run; look at them, then commit them")


def replace(target: Path, source: Path, pattern: str, included: Callable[[Path], bool] = Path.is_file) -> None:
    """Replaces a folder's files of a pattern by copies of another folder's, of which large tables are compressed."""
    if source == target:
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in target.glob(pattern):
        path.unlink()
    for path in filter(included, source.glob(pattern)):
        if path.suffix == ".csv" and path.stat().st_size > LARGE:
            (target / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
        else:
            shutil.copyfile(path, target / path.name)


def with_findings(readme: str, report: nbformat.NotebookNode) -> str:
    """README.md with the executed report's first Markdown output between its two marks. UsageError where it is not."""
    begin, end = map(readme.find, FINDINGS)
    if not 0 <= begin < end:
        raise UsageError(f"README.md lacks the lines {' and '.join(FINDINGS)}, between which the findings go")
    outputs = [output.get("data", {}) for cell in report.cells for output in cell.get("outputs", [])]
    opening = next(data["text/markdown"] for data in outputs if "text/markdown" in data)
    return f"{readme[:begin]}{FINDINGS[0]}\n{opening}\n{readme[end:]}"
