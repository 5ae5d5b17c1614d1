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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
from click import UsageError

from lib.lab import atomic_file, execute, provenance
from lib.lab.parameters import defaults_of
from lib.lab.plan import REPORT, RUN_DIR, RunPlan, notebooks_of

FINDINGS = "<!-- findings: from the committed run -->", "<!-- end of findings -->"  # the lines around them in README.md
LARGE = 100_000  # bytes, from which a committed table is compressed
Say = Callable[[str], None]


def carry_out(plan: RunPlan, say: Say) -> Path | None:
    """Runs the notebooks of a plan; returns the report's path, None without a report. UsageError before anything has
    run; StageFailed where a notebook stops.
    """
    with locked(plan.folder):
        record = load(plan.folder) | facts(plan)
        record["parameters"] |= {stage.name: stage.parameters for stage in plan.stages}
        say(f"profile {plan.profile_name}: {plan.profile.about}\nrun {plan.name}, in "
            f"{plan.folder.relative_to(plan.home)}: {', '.join(stage.name for stage in plan.stages)}; rows that are "
            "measured already are kept")
        for number, stage in enumerate(plan.stages, 1):
            head, estimate = f"[{number}/{len(plan.stages)}] {stage.name}", plan.profile.seconds.get(stage.name)
            say(f"{head} ... started {time.strftime('%H:%M:%S')}{f', about {spoken(estimate)}' if estimate else ''}")
            record["stages"].pop(stage.name, None)
            save(plan.folder, record)
            notebook, start = plan.home / "notebooks" / f"{stage.name}.ipynb", time.monotonic()
            execute.run(notebook, plan.folder / "executed" / notebook.name, stage.values)
            seconds = time.monotonic() - start
            record["stages"][stage.name] = {"commit": record["commit"], "machine": record["machine"],
                                            "seconds": round(seconds, 1), "finished": now()}
            save(plan.folder, record)
            say(f"{head} done in {spoken(seconds)}")
        return shown(plan.home, plan.folder, plan.reference, say) if REPORT in record["stages"] else None


def render(home: Path, folder: Path, say: Say, reference: bool = False) -> Path:
    """Executes the notebooks that a run has finished, and the report, on the run's tables without models; writes their
    copies and pages, and into run.json by which commit. Returns the report's path. UsageError for a folder without run.
    """
    if not (folder / "run.json").exists():
        raise UsageError(f"{folder} holds no run (no run.json); name the folder of a run, such as data/runs/cpu")
    with locked(folder):
        record = load(folder)
        names = [name for name in notebooks_of(home) if name in record["stages"] or name == REPORT]
        os.environ[provenance.RENDER] = "1"  # in which notebooks measure nothing
        try:
            for name in names:
                notebook = home / "notebooks" / f"{name}.ipynb"
                values = record["parameters"].get(name, {}) | {RUN_DIR: os.path.relpath(folder, notebook.parent)}
                execute.run(notebook, folder / "executed" / notebook.name,
                            {key: values[key] for key in values.keys() & defaults_of(notebook).keys()})
                say(f"rendered {name}")
        finally:
            del os.environ[provenance.RENDER]
        save(folder, record | {"rendered": provenance.commit() | {"finished": now(), "notebooks": names}})
        return shown(home, folder, reference, say)


def shown(home: Path, folder: Path, reference: bool, say: Say) -> Path:
    """Writes the pages of a run, which may become the committed one; returns the report's path."""
    execute.pages(folder / "executed", folder)
    if reference:
        make_reference(home, folder, say)
    return folder / "report.html"


def spoken(seconds: float) -> str:
    """A duration as hours:minutes:seconds, without hours where there are none."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Reserves a run's folder for this process, until the process ends. UsageError where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"run {folder.name} is being made right now; wait for it, or take --run OTHER") from None
        yield


def load(folder: Path) -> dict:
    """The record of a run, an empty one for a new run. UsageError where run.json cannot be read."""
    if not (folder / "run.json").exists():
        return {"started": now(), "stages": {}, "parameters": {}}
    try:
        return provenance.read(folder)
    except ValueError as error:
        raise UsageError(f"{error}; delete the file to make the run {folder.name} anew, or take --run OTHER") from None


def save(folder: Path, record: Mapping) -> None:
    """Writes run.json, in one step."""
    atomic_file.replace(folder / "run.json", (json.dumps(record, indent=2, default=str) + "\n").encode())


def facts(plan: RunPlan) -> dict[str, object]:
    """What makes a run, as the record has it."""
    devices = {stage.parameters.get("device", "cpu") for stage in plan.stages} - {"cpu"}
    return {
        "run": plan.name, "profile": plan.profile_name, **provenance.commit(), "versions": provenance.versions(),
        "machine": provenance.machine(min(devices, default="cpu")),
        **{name: {path.name: provenance.file_digest(path) for path in sorted((plan.home / "data" / name).glob("[!.]*"))}
           for name in ("models", "prompts")}}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_reference(home: Path, folder: Path, say: Say) -> None:
    """Makes a run the committed one: its tables, record, figures, executed notebooks, report, and README's findings."""
    readme, results = home / "README.md", home / "data" / "results" / "reference"
    executed = home / "notebooks" / "executed"
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
