"""Environments of serving engines: `./run_notebooks.sh engines NAME` makes one under .engines/NAME, beside .venv.

Each is a virtual environment of pinned packages, since an engine wants other versions than this project. Making it
resumes where it stopped. An engine's program is run, and nothing of it is imported here.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lib.lab import atomic_file, provenance

HOME = provenance.HOME / ".engines"
DONE = "packages.txt"  # in a finished environment: the commands that made it


@dataclass(frozen=True)
class Environment:
    """What an engine needs.

    steps: arguments of pip, one list after another; none where this project's environment has the engine. licence: of
    the engine. gigabytes: on the disk; minutes: to make it on two cores. notes: what a user has to know, one sentence
    each. variables: of the environment in which pip runs.
    """

    name: str
    steps: Sequence[Sequence[str]] = ()
    licence: str = ""
    gigabytes: float = 0
    minutes: float = 0
    notes: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return HOME / self.name

    @property
    def python(self) -> Path:
        """Its Python. FileNotFoundError names the command that makes it."""
        if not self.steps:
            return Path(sys.executable)
        if not self.is_there:
            raise FileNotFoundError(f"the engine {self.name} is not installed; ./run_notebooks.sh engines {self.name} "
                                    f"installs it under {self.folder} ({self.gigabytes:g} GB, about "
                                    f"{self.minutes:g} minutes)")
        return self.folder / "bin" / "python"

    @property
    def is_there(self) -> bool:
        """Whether it was made to its end, of these packages."""
        marker = self.folder / DONE
        return marker.is_file() and marker.read_text(encoding="utf-8") == self._recipe

    @property
    def _recipe(self) -> str:
        return "".join(" ".join(step) + "\n" for step in self.steps)

    def make(self, say: Callable[[str], None] = print, base: str = sys.executable) -> None:
        """Makes what is not there yet. RuntimeError where a step fails; the same command resumes."""
        if self.is_there:
            say(f"{self.name}: is there, in {self.folder}")
            return
        say("\n  ".join([f"{self.name} ({self.licence}): {self.gigabytes:g} GB in {self.folder}, about "
                         f"{self.minutes:g} minutes on two cores", *self.notes]))
        if (free := shutil.disk_usage(HOME.parent).free / 1e9) < self.gigabytes:
            raise RuntimeError(f"{self.name} needs {self.gigabytes:g} GB, {free:.1f} GB are free; make room")
        self._run([base, "-m", "venv", str(self.folder)])  # it and pip take what an earlier, stopped run left
        for step in self.steps:
            say(f"  pip {' '.join(step)}")
            self._run([str(self.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *step])
        atomic_file.replace(self.folder / DONE, self._recipe.encode())
        say("  done")

    def _run(self, command: Sequence[str]) -> None:
        if subprocess.run(command, env=os.environ | dict(self.variables)).returncode:
            raise RuntimeError(f"{' '.join(command)} failed, as it says above; the same command resumes")
