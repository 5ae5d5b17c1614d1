"""Carrying out a plan: what is finished is passed over, each stage is recorded as it ends, the report comes last."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Callable

import nbformat

from lib.lab import execute, record, tables
from lib.lab.errors import UsageError
from lib.lab.plan import READ_BY_REPORT, REPORT, Plan
from lib.lab.readme import with_findings
from lib.lab.schema import SCHEMAS

SHOWN = REPORT.partition("_")[0]  # the figures that are committed begin so: those that the report shows
REFERENCE_LIMIT = 48 * 2**20  # bytes of all that is tracked


def carry_out(plan: Plan, say: Callable[[str], None]) -> Path | None:
    """Run a plan's stages that are not finished; returns the report's path, None without one.

    UsageError before anything has run; StageFailed where a notebook stops.
    """
    with record.locked(plan.folder):
        before = record.load(plan.folder)
        kept = record.about(plan, before)
        _check_read(plan, kept)
        wanted = record.fingerprints(plan, kept)
        done = record.finished(plan, kept, wanted)
        announce(plan, done, before, say)
        kept.setdefault("started", record.now())
        for number, stage in enumerate(plan.stages, 1):
            head = f"[{number}/{len(plan.stages)}] {stage.name}"
            if stage.name in done:
                continue
            say(f"{head} ... started {time.strftime('%H:%M:%S')}, {_about(stage.seconds)}")
            kept["stages"].pop(stage.name, None)
            record.save(plan.folder, kept)
            start = time.monotonic()
            execute.run(plan, stage, show_progress=sys.stderr.isatty())
            seconds = time.monotonic() - start
            kept["stages"][stage.name] = {
                "fingerprint": wanted[stage.name], "commit": kept["commit"], "seconds": round(seconds, 1),
                "machine": kept["machine"],
                "finished": record.now()}
            record.save(plan.folder, kept)
            say(f"{head} done in {spoken(seconds)}")
        kept["finished"] = record.now()
        record.save(plan.folder, kept)
        report = _report(plan, set(done))
        if plan.reference:
            make_reference(plan, say)
        return report


def _check_read(plan: Plan, kept: dict) -> None:
    """UsageError where the report is asked for, and the run never had a notebook that it reads."""
    missing = [name for name in plan.known if name in READ_BY_REPORT and name not in kept["parameters"]]
    if missing and REPORT in {stage.name for stage in plan.stages}:
        raise UsageError(f"{REPORT} reads what others leave, and run {plan.run} never had {', '.join(missing)}; run "
                         "them too, or name the run that has them with --run")


def announce(plan: Plan, done: set[str], before: dict, say: Callable[[str], None]) -> None:
    """Say what will be done and about how long it takes."""
    todo = [stage for stage in plan.stages if stage.name not in done]
    known = [stage.seconds for stage in todo if stage.seconds is not None]
    unknown = f", and {len(todo) - len(known)} notebooks of unknown length" if len(known) < len(todo) else ""
    say(f"profile {plan.profile.name}{': ' + plan.profile.about if plan.profile.about else ''}")
    say(f"run {plan.run}, in {_shown(plan, plan.folder)}: {len(todo)} of {len(plan.stages)} notebooks to run"
        f"{', about ' + spoken(sum(known)) if known else ''}{unknown if known else ''}")
    for stage in plan.stages:
        if stage.name not in done:
            note = _about(stage.seconds)
        elif stage.name in before["stages"]:
            note = f"finished {before['stages'][stage.name]['finished']}, passed over"
        else:
            note = "passed over; it has never finished in this run"
        say(f"  {stage.name:<22} {note}")


def make_reference(plan: Plan, say: Callable[[str], None]) -> None:
    """Copy a whole run to where the committed one lies: tables and record, figures, executed notebooks and report."""
    home, results = plan.layout.home, plan.layout.home / "data" / "results" / "reference"
    executed = plan.layout.notebooks / "executed"
    copied = [
        *_replace(plan.folder / "tables", results / "tables", ("*.csv", "*.csv.xz")),
        *_replace(plan.folder, results, ("run.json",)),
        *_replace(plan.folder / "figures", home / "figures", (f"{SHOWN}_*.png", f"{SHOWN}_*.svg")),
        *_replace(plan.folder / "executed", executed, ("[0-9]*.ipynb",)),
        *_replace(plan.folder, executed, ("report.html",)),
    ]
    for path in (results / "tables").glob("*.csv.xz"):
        tables.pack(path)
    readme, report = home / "README.md", nbformat.read(executed / f"{REPORT}.ipynb", as_version=4)
    readme.write_text(with_findings(readme.read_text(encoding="utf-8"), report), encoding="utf-8")
    size = sum(path.stat().st_size for path in copied)
    say(f"reference: {len(copied)} files, {size / 2**20:.1f} MiB, in data/results/reference, figures and "
        "notebooks/executed, and its findings in README.md; look at them, then commit them")
    if size > REFERENCE_LIMIT:
        say(f"warning: all that is tracked may take {REFERENCE_LIMIT / 2**20:.0f} MiB")


def resuming(plan: Plan) -> list[str]:
    """The command that goes on with a run that has stopped: the same, but with --from at the stage where it stopped."""
    words = ["./run_notebooks.sh", *plan.command]
    if plan.start is None:
        return words
    recorded = record.load(plan.folder)["stages"]
    left = [name for name in plan.known[plan.known.index(plan.start):] if name not in recorded]
    if left and "--from" in words:
        words[words.index("--from") + 1] = left[0]
    return words


def spoken(seconds: float) -> str:
    """A duration in words."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _about(seconds: float | None) -> str:
    return f"about {spoken(seconds)}" if seconds is not None else "of unknown length"


def _report(plan: Plan, done: set[str]) -> Path | None:
    """The run's report, made anew where its notebook has run."""
    target = plan.folder / "report.html"
    if REPORT not in {stage.name for stage in plan.stages}:
        return None
    if REPORT not in done or not target.exists():
        if not record.executed(plan, REPORT).exists():
            raise UsageError(f"{REPORT} has never finished in run {plan.run}; run it without --from")
        execute.report(record.executed(plan, REPORT), target)
    return target


def _replace(source: Path, target: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Put a folder's files of these patterns in the place of the target's; returns the new ones.

    What failed stays behind, and a table as it was written before its schema was compressed, or no longer was.
    """
    target.mkdir(parents=True, exist_ok=True)
    for pattern in patterns:
        for path in target.glob(pattern):
            path.unlink()
    found = {path for pattern in patterns for path in source.glob(pattern)}
    return [Path(shutil.copyfile(path, target / path.name)) for path in sorted(found)
            if ".failed." not in path.name and not _outdated(path)]


def _outdated(path: Path) -> bool:
    """Whether a table's file has a form that its schema had once."""
    schema = SCHEMAS.get(path.name.partition(".")[0]) if path.parent.name == "tables" else None
    return schema is not None and path.name != schema.file_name


def _shown(plan: Plan, path: Path) -> str:
    return os.path.relpath(path, plan.layout.home)
