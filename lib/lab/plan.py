"""From a command to a plan: which notebooks run, with which parameters, as which run. Mistakes are found here."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import yaml
from click import UsageError
from pydantic import BaseModel, ConfigDict, ValidationError

from lib.lab.parameters import Parameters, Value, class_of, defaults_of, nearest, sentence

REPORT = "06_report"  # the notebook that becomes report.html
RUN_DIR = "run_dir"  # the parameter that the runner sets: the folder for tables and figures
LONGEST_NAME = 80  # characters of a run's default name


class Profile(BaseModel):
    """A file of parameters. seconds: estimates by notebook; online: whether models may be downloaded; further keys: the
    parameters of each notebook.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, dict[str, Value] | None]
    about: str = ""
    online: bool = False
    seconds: dict[str, float] = {}


@dataclass(frozen=True)
class Stage:
    """One notebook: the defaults of its parameters, and the values of the profile and the command."""

    name: str
    defaults: Mapping[str, Value]
    values: Mapping[str, Value]

    @property
    def parameters(self) -> dict[str, Value]:
        """All parameters with the values that the notebook runs with."""
        return {**self.defaults, **self.values}


@dataclass(frozen=True)
class RunPlan:
    """A command for the project in a folder (home), whose run has a name."""

    home: Path
    profile_name: str
    profile: Profile
    name: str
    stages: tuple[Stage, ...]
    reference: bool

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.home / "data" / "runs" / self.name


def notebooks_of(home: Path) -> list[str]:
    """The names of a project's notebooks in the order in which they run: those that begin with a number."""
    return sorted(path.stem for path in (home / "notebooks").glob("[0-9]*.ipynb"))


def make(home: Path, words: Sequence[str], *, settings: Sequence[str] = (), run: str | None = None,
         reference: bool = False) -> RunPlan:
    """The plan of a command, whose values `checked` checks. UsageError, with a line for each reason, for unknown words.

    words: at most one profile, and notebooks (none: all). settings: name=value, for each notebook that has the
    parameter, with paths relative to the current folder.
    """
    notebooks, names = home / "notebooks", notebooks_of(home)
    profiles = {path.stem: path for path in notebooks.glob("params/*.yaml")}
    chosen, files = set(), []
    for word in words:
        part = Path(word).name.removesuffix(".ipynb")  # a notebook's name, or its number, or the part after its number
        meant = {name for name in names if {part, part.zfill(2)} & {name, *name.split("_", 1)}}
        if word in profiles or word.endswith(".yaml") and Path(word).is_file():
            files.append(profiles.get(word, Path(word)))
        elif not meant:
            raise UsageError(f"{word!r} is neither a profile, a profile's file nor a notebook: "
                             f"{nearest(word, [*profiles, *names, 'test', 'render'])}")
        else:
            chosen |= meant
    if len(files) > 1:
        raise UsageError(f"one profile at a time, not {' and '.join(path.stem for path in files)}")
    if reference and chosen:
        raise UsageError(f"--reference takes all notebooks; leave out {', '.join(sorted(chosen))}")
    file = files[0] if files else profiles["cpu"]
    if run is None:  # other settings make another run
        run = "reference" if reference else re.sub(r"[^A-Za-z0-9._=-]+", "-", "-".join([file.stem, *settings]))
        if len(run) > LONGEST_NAME:
            run = f"{run[:LONGEST_NAME - 9]}-{sha256(' '.join(settings).encode()).hexdigest()[:8]}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]*", run):
        raise UsageError(f"--run {run!r}: a run's name consists of letters, digits and . _ = -, beginning with a "
                         "letter or digit")
    profile = load_profile(file, names)
    defaults = {name: defaults_of(notebooks / f"{name}.ipynb") for name in names if not chosen or name in chosen}
    texts = dict(_parted(setting, notebooks) for setting in settings)
    parameters = {parameter for values in defaults.values() for parameter in values} - {RUN_DIR}
    if unknown := texts.keys() - parameters:
        raise UsageError("\n".join(f"--set {name}: no notebook of this command has such a parameter: "
                                   f"{nearest(name, parameters)}" for name in sorted(unknown)))
    texts[RUN_DIR] = os.path.relpath(home / "data" / "runs" / run, notebooks)
    stages = [Stage(name, values, (profile.__pydantic_extra__.get(name) or {})
                    | {key: texts[key] for key in texts.keys() & values.keys()}) for name, values in defaults.items()]
    return RunPlan(home, file.stem, profile, run, tuple(stages), reference)


def checked(plan: RunPlan, classes: Mapping[str, type[Parameters]]) -> RunPlan:
    """The plan with values as the classes of its notebooks read them. UsageError with a line for each fault."""
    faults, stages = {}, []
    for stage in plan.stages:
        lines = [f"profile {plan.profile_name}: no parameter is called {name!r}: {nearest(name, stage.defaults)}"
                 for name in sorted(stage.values.keys() - stage.defaults.keys())]
        try:
            with chdir(plan.home / "notebooks"):  # in which notebooks run, and to which paths are relative
                read = classes.get(stage.name, class_of(stage.defaults)).of(stage.parameters).model_dump()
            stages.append(replace(stage, values={name: read[name] for name in stage.values if name in read}))
        except ValueError as error:
            lines += str(error).splitlines()
        for line in lines:
            faults.setdefault(line, []).append(stage.name)
    if faults:
        raise UsageError("\n".join(f"{', '.join(names)}: {line}" for line, names in faults.items()))
    return replace(plan, stages=tuple(stages))


def load_profile(path: Path, names: Sequence[str]) -> Profile:
    """A profile from its file. UsageError where the file is malformed or names a notebook that does not exist."""
    try:
        profile = Profile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except ValidationError as error:
        raise UsageError("\n".join(f"profile {path}: {sentence(fault)}" for fault in error.errors())) from None
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"profile {path} cannot be read: {' '.join(str(error).split())}") from None
    for name in profile.__pydantic_extra__:
        if name not in names:
            raise UsageError(f"profile {path}: no notebook is called {name!r}: {nearest(name, names)}")
    return profile


def _parted(setting: str, notebooks: Path) -> tuple[str, str]:
    """Name and value of a setting; a path in it becomes relative to the notebooks' folder."""
    def from_notebooks(part: re.Match) -> str:
        is_path = re.search("[/.]", part[0]) and Path(part[0]).exists()
        return os.path.relpath(part[0], notebooks) if is_path else part[0]

    name, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not name:
        raise UsageError(f"--set {setting!r}: write --set name=value")
    return name, re.sub(r"[^|,;\s][^|,;]*", from_notebooks, text)
