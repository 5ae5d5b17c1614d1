"""`python -m lib`: the command behind run_notebooks.sh, and the one place that knows both the runner and the studies.

`python -m lib [PROFILE] [NOTEBOOK ...]` runs notebooks, `python -m lib test` the tests, `python -m lib making ...` trains
the shipped models again.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from lib.lab.errors import StageFailed, UsageError

HOME = Path(__file__).resolve().parents[1]
USAGE, FAILED, INTERRUPTED = 2, 1, 130
WRONG_ARGUMENTS = 4  # what pytest ends with

HELP = """\
./run_notebooks.sh [PROFILE] [NOTEBOOK ...] [--from NN] [--run NAME] [--set name=value ...] [--reference]
./run_notebooks.sh test [pytest's arguments]

Runs the notebooks in order and leaves a report in data/runs/RUN/report.html.

  PROFILE        {profiles}; or a file of your own like those in notebooks/params (default: cpu)
  NOTEBOOK       a number or a name, such as 02 or 02_acceptance: run these alone (default: all)
                   {notebooks}
  --from NN      go on from this notebook, whether or not it is finished; those before it stay as they are
  --run NAME     the run's folder under data/runs (default: the profile, and what --set changes)
  --set n=v      give a parameter another value in every notebook that has it; may be repeated.
                   lists: a,b,c, or a;b;c where members hold commas: --set "families=chain;expansion:2,2,1"
  --reference    make this run the committed reference: after success its tables go to data/results/reference, its
                   figures to figures, its executed notebooks and report to notebooks/executed
  test           every test: pytest over lib/tests, then each notebook at its defaults; -k, -x and so on are passed on
  --help         this text

The same command again goes on where it stopped: a notebook is passed over if it is finished and neither its text,
the code that it uses, its parameters, models, prompts, versions, the machine nor an earlier notebook has changed.
Models come from data/models; the network is asked for others only with a profile that says `online: true` (gpu), or
where HF_HUB_OFFLINE=0 is set.
Exit status: 0 done, 1 a notebook or test failed, 2 the command is wrong, 130 stopped by hand.
"""


def main(arguments: Sequence[str] | None = None, home: Path = HOME) -> int:
    """Carry out a command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["test"]:
            return test(home, arguments[1:])
        if arguments[:1] == ["making"]:
            return make_models(arguments[1:])
        return notebooks(home, arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("\nstopped before anything ran", file=sys.stderr)
        return INTERRUPTED


def notebooks(home: Path, arguments: Sequence[str]) -> int:
    """Plan and run notebooks."""
    from lib.lab import plan
    from lib.studies import parameters

    layout = plan.Layout(home)
    asked = _parser(layout).parse_intermixed_args(arguments)
    if asked.help:
        print(HELP.format(profiles=", ".join(layout.profiles()), notebooks=", ".join(layout.stages())))
        return 0
    made = plan.make(layout, asked.words, settings=asked.settings, run=asked.run, start=asked.start,
                     reference=asked.reference, command=arguments)
    if not made.profile.online:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parameters.check(made)
    return _run(made)


def make_models(arguments: Sequence[str]) -> int:
    """Train shipped models, heads or tables again (see `lib.making.command`)."""
    from lib.making import command

    command.main(arguments)
    return 0


def test(home: Path, arguments: Sequence[str]) -> int:
    """pytest over lib/tests, then every notebook at its defaults; paths among the arguments take the place of these."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tests, notebook_files = home / "lib" / "tests", sorted((home / "notebooks").glob("*.ipynb"))
    given = any(Path(word.split("::")[0]).exists() for word in arguments)
    places = [] if given else [str(path) for path in (tests, *notebook_files)]
    command = [sys.executable, "-m", "pytest", "--rootdir", str(home), "-c", str(home / ".pytest.ini"),
               "--nbval-lax", "--nbval-current-env", *arguments, *places]
    return {0: 0, WRONG_ARGUMENTS: USAGE}.get(subprocess.run(command).returncode, FAILED)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command as everything else here does."""

    def error(self, message: str):
        """UsageError in the place of argparse's exit."""
        raise UsageError(f"{message}; ./run_notebooks.sh --help explains")


def _parser(layout) -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--from", dest="start")
    parser.add_argument("--run")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    return parser


def _run(made) -> int:
    """Carry out a plan, saying how it goes; the exit status."""
    from lib.lab import run

    def say(line: str) -> None:
        """A line that is seen at once, also where the output is a file."""
        print(line, flush=True)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        report = run.carry_out(made, say)
    except StageFailed as error:
        say(f"error: {error}")
        say(f"what was finished is kept; to go on from there: {shlex.join(run.resuming(made))}")
        return FAILED
    except KeyboardInterrupt:
        say(f"\nstopped; what was finished is kept; to go on from there: {shlex.join(run.resuming(made))}")
        return INTERRUPTED
    say(f"report: {report}" if report else f"done: {made.folder}")
    return 0


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
