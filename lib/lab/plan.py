"""From a command to a plan: which notebooks run, with which parameters, as which run. Mistakes are found here."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from click import UsageError
from pydantic import ConfigDict

from lib.lab.parameters import Parameters, Value, defaults_of, nearest, pieces

REPORT = "06_report"  # the notebook that becomes report.html
FILE = re.compile(r"\.(csv|gguf|jsonl?)$")  # the end of a name that is a file's, whether it exists or not
RUN_DIR = "run_dir"  # the parameter that the runner sets: the folder for tables and figures
Classes = Mapping[str, type[Parameters]]  # of the parameters of each notebook, by its name


class Profile(Parameters):
    """A file of parameters. seconds: estimates by notebook; online: whether models may be downloaded; further keys: the
    parameters of each notebook.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Value] | None]
    about: str = ""
    online: bool = False
    seconds: dict[str, float] = {}


@dataclass(frozen=True)
class RunPlan:
    """A command for the project in a folder (home). folder: of the run; stages: the parameters of each notebook."""

    home: Path
    profile_name: str
    profile: Profile
    folder: Path
    stages: Mapping[str, Mapping[str, Value]]


def make(home: Path, words: Sequence[str], classes: Classes, settings: Sequence[str] = (),
         run: str | None = None) -> RunPlan:
    """The plan of a command, whose values `checked` checks. UsageError, with a line for each reason, for unknown words.

    words: at most one profile, and notebooks (none: all), which the report follows. settings: name=value, for each
    notebook that has the parameter, with paths relative to the current folder. run: the name of its folder; by default
    profile and settings.
    """
    notebooks, chosen = home / "notebooks", []
    profiles = {path.stem: path for path in notebooks.glob("params/*.yaml")}
    for word in words:
        names = [name for name in classes if word.zfill(2) in (name, name.partition("_")[0])]
        if word not in profiles and not names:
            raise UsageError(f"{word!r} is neither a profile nor a notebook: "
                             f"{nearest(word, [*profiles, *classes, 'test', 'render'])}")
        chosen += names
    profile_name, *others = [word for word in words if word in profiles] or ["cpu"]
    if others:
        raise UsageError(f"one profile at a time, not {profile_name} and {' and '.join(others)}")
    profile = load_profile(profiles[profile_name], classes)
    names = sorted({*chosen, REPORT} & {*classes}) if chosen else classes  # every run ends with a page about it
    defaults = {name: defaults_of(notebooks / f"{name}.ipynb") for name in names}
    texts = dict(_parted(setting, notebooks) for setting in settings)
    parameters = {parameter for values in defaults.values() for parameter in values} - {RUN_DIR}
    if unknown := texts.keys() - parameters:
        raise UsageError("\n".join(f"--set {name}: no notebook of this command has such a parameter: "
                                   f"{nearest(name, parameters)}" for name in sorted(unknown)))
    run = re.sub(r"[^\w.=-]+", "-", run or "-".join([profile_name, *settings]))
    folder = home / "data" / "runs" / run.strip(".-")
    texts[RUN_DIR] = os.path.relpath(folder, notebooks)
    stages = {name: values | (profile.__pydantic_extra__.get(name) or {})
              | {key: texts[key] for key in texts.keys() & values.keys()} for name, values in defaults.items()}
    return RunPlan(home, profile_name, profile, folder, stages)


def checked(plan: RunPlan, classes: Classes) -> RunPlan:
    """The plan with values as the classes of its notebooks read them. UsageError with a line for each fault."""
    faults, stages = {}, {}
    for name, values in plan.stages.items():
        fields = classes[name].model_fields
        lines = [f"profile {plan.profile_name}: no parameter is called {key!r}: {nearest(key, fields)}"
                 for key in values if key not in fields]
        try:
            with chdir(plan.home / "notebooks"):  # in which notebooks run, and to which paths are relative
                stages[name] = classes[name].of(values).model_dump()
        except ValueError as error:
            lines += str(error).splitlines()
        for line in lines:
            faults.setdefault(line, []).append(name)
    if faults:
        raise UsageError("\n".join(f"{', '.join(names)}: {line}" for line, names in faults.items()))
    return replace(plan, stages=stages)


def load_profile(path: Path, names: Iterable[str]) -> Profile:
    """A profile from its file. UsageError where the file is malformed or names a notebook that does not exist."""
    try:
        profile = Profile.of(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError("\n".join(f"profile {path}: {line}" for line in str(error).splitlines())) from None
    for name in profile.__pydantic_extra__:
        if name not in names:
            raise UsageError(f"profile {path}: no notebook is called {name!r}: {nearest(name, names)}")
    return profile


def _parted(setting: str, notebooks: Path) -> tuple[str, str]:
    """Name and value of a setting; a path in it, and the name of a file that is missing, become relative to the
    notebooks' folder.
    """
    name, equals, text = map(str.strip, setting.partition("="))
    if not equals:
        raise UsageError(f"--set {setting!r}: write --set name=value")
    parts = [os.path.relpath(Path(part).expanduser(), notebooks) if FILE.search(part) or _is_path(part) else part
             for part in pieces(text)]
    return name, "".join(parts)


def _is_path(part: str) -> bool:
    """Whether a piece of a setting is written as a path, and exists."""
    return bool(re.search("[/.,;]", part)) and Path(part).exists()
