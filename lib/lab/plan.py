"""From a command to a plan: which notebooks run, with which parameters, as which run.

Mistakes in a command, a profile or the type of a parameter are found here; the runner does not know what values mean.
"""

import ast
import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Iterable, Mapping, Sequence

import yaml

REPORT = "09_report"  # the notebook that becomes report.html
RUN_DIR = "run_dir"  # the parameter that the runner sets: the folder for tables and figures
DEFAULT_PROFILE = "cpu"
FILE_ENDINGS = (".jsonl", ".json", ".txt", ".log", ".yaml", ".csv", ".gz", ".gguf")
LONGEST_NAME = 80  # characters of a run's default name
Value = bool | int | float | str | list


class UsageError(Exception):
    """The command cannot be carried out as given; nothing has run."""


class StageFailed(Exception):
    """A notebook stopped with an error; what finished before it is kept."""


@dataclass(frozen=True)
class Layout:
    """The folders of a project."""

    home: Path

    @property
    def notebooks(self) -> Path:
        """The folder of the notebooks, with their profiles in `params`."""
        return self.home / "notebooks"

    @property
    def runs(self) -> Path:
        """The folder of all runs, which git ignores."""
        return self.home / "data" / "runs"

    def profiles(self) -> dict[str, Path]:
        """name -> file of the project's own profiles."""
        return {path.stem: path for path in sorted((self.notebooks / "params").glob("*.yaml"))}

    def stages(self) -> list[str]:
        """Names of the notebooks in the order in which they run: those that begin with a number."""
        return sorted(path.stem for path in self.notebooks.glob("[0-9]*.ipynb"))


@dataclass(frozen=True)
class Profile:
    """Values by notebook and parameter. seconds: estimates by notebook. online: whether models may be downloaded.
    apart: notebooks that run only where a command names them, such as one that needs other software (see `Stage`).
    """

    name: str
    about: str
    values: Mapping[str, Mapping[str, Value]]
    seconds: Mapping[str, float]
    online: bool
    apart: Sequence[str]


@dataclass(frozen=True)
class Stage:
    """One notebook: defaults of its parameters, values that the command sets, estimated seconds (None: unknown). apart:
    it is rendered from the tables that the run has, or else from those of the committed run.
    """

    name: str
    defaults: Mapping[str, Value]
    values: Mapping[str, Value]
    seconds: float | None
    apart: bool = False

    @property
    def parameters(self) -> dict[str, Value]:
        """All parameters with the values that the notebook runs with."""
        return {**self.defaults, **self.values}


@dataclass(frozen=True)
class RunPlan:
    """A command, checked. stages: in order; known: all notebooks; start: the one that --from names.

    typed: path relative to the notebooks' folder -> path as the user typed it.
    """

    layout: Layout
    profile: Profile
    run: str
    stages: tuple[Stage, ...]
    known: tuple[str, ...]
    start: str | None = None
    reference: bool = False
    command: Sequence[str] = ()
    typed: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.layout.runs / self.run

    def executed(self, stage: str) -> Path:
        """The executed copy of a finished stage."""
        return self.folder / "executed" / f"{stage}.ipynb"

    @property
    def has_report(self) -> bool:
        """Whether the report is among the stages."""
        return REPORT in (stage.name for stage in self.stages)

    def as_typed(self, message: str) -> str:
        """A message with its paths as the user typed them."""
        for path in sorted(self.typed, key=len, reverse=True):
            message = message.replace(path, self.typed[path])
        return message


def make(layout: Layout, words: Sequence[str], *, settings: Sequence[str] = (), run: str | None = None,
         start: str | None = None, reference: bool = False, cwd: Path | None = None,
         command: Sequence[str] = ()) -> RunPlan:
    """The plan of a command. UsageError says what is wrong with it.

    words: at most one profile, and notebooks (none: all). settings: name=value, for each notebook that has the
    parameter. start: the notebook of --from. cwd: the folder that relative paths in settings start from.
    """
    known, cwd = layout.stages(), cwd or Path.cwd()
    profiles, chosen, files = layout.profiles(), set(), []
    for word in words:
        if word in profiles:
            files.append(profiles[word])
        elif (notebook := find_notebook(word, known)) is not None:
            chosen.add(notebook)
        elif word.endswith((".yaml", ".yml")) and Path(word).is_file():
            files.append(Path(word))
        elif word in ("test", "render"):
            raise UsageError(f"'{word}' goes with no profile or notebook; write ./run_notebooks.sh {word} first")
        else:
            raise UsageError(f"{word!r} is neither a profile, a profile's file nor a notebook: "
                             f"{nearest(word, [*profiles, *known, 'test', 'render'])}")
    if len(files) > 1:
        raise UsageError(f"one profile at a time, not {' and '.join(path.stem for path in files)}")
    if reference and chosen:
        raise UsageError("--reference takes all notebooks; leave out " + ", ".join(sorted(chosen)))
    profile = load_profile(*files or [layout.notebooks / "params" / f"{DEFAULT_PROFILE}.yaml"], known)
    names = [name for name in known if name in chosen] if chosen else known
    defaults = {name: defaults_of(layout.notebooks / f"{name}.ipynb") for name in known}
    values: dict[str, dict[str, Value]] = {}
    for notebook in known:
        where, section = f"profile {profile.name}, {notebook}", profile.values.get(notebook, {})
        parameters = set(defaults[notebook]) - {RUN_DIR}
        if unknown := [name for name in section if name not in parameters]:
            raise UsageError(f"{where}: no parameter is called {unknown[0]!r}: {nearest(str(unknown[0]), parameters)}")
        values[notebook] = {name: checked(f"{where}: {name}", defaults[notebook][name], value)
                            for name, value in section.items()}
    typed: dict[str, str] = {}
    for setting in settings:
        _apply(setting, names, defaults, values, cwd, layout.notebooks, typed)
    if run is None:  # the profile and the settings, with the last part of each path: other settings, another name
        full = short = "-".join([profile.name, *settings])
        for path in sorted(typed.values(), key=len, reverse=True):
            short = short.replace(path, Path(path).name)
        run = "reference" if reference else re.sub(r"[^A-Za-z0-9._=-]+", "-", short).strip("-.")
        if not reference and (short != full or len(run) > LONGEST_NAME):
            run = f"{run[:LONGEST_NAME - 9]}-{sha256(full.encode()).hexdigest()[:8]}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]*", run):
        raise UsageError(f"--run {run!r}: a run's name consists of letters, digits and . _ = -, beginning with "
                         "a letter or digit")
    where = {RUN_DIR: os.path.relpath(layout.runs / run, layout.notebooks)}
    stages = tuple(Stage(name, defaults[name], values[name] | (where if RUN_DIR in defaults[name] else {}),
                         profile.seconds.get(name), name in profile.apart and not chosen) for name in names)
    first = start and find_notebook(start, known)
    if start is not None and first not in names:
        hint = f"it is not among the notebooks of this command, {', '.join(names)}" if first else nearest(start, known)
        raise UsageError(f"--from: no notebook {first or repr(start)}: {hint}")
    return RunPlan(layout, profile, run, stages, tuple(known), first, reference, tuple(command), typed)


def find_notebook(word: str, known: Sequence[str]) -> str | None:
    """The notebook that a name, the part of a name after its number, or a number means; None where there is none."""
    word = Path(word).name.removesuffix(".ipynb")
    for name in known:
        number, _, rest = name.partition("_")
        if word in (name, rest) or (word.isdecimal() and number.isdecimal() and int(word) == int(number)):
            return name
    return None


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for an unknown name: the names most like it, or all names if none is."""
    names = sorted(names)
    close = get_close_matches(name, names, n=3, cutoff=0.5) or [other for other in names if name and name in other]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names)}" if names else "there are none"


# ------------------------------------------------------------------------------------------------------------- profiles


def load_profile(path: Path, known: Sequence[str]) -> Profile:
    """A profile from its file. UsageError where the file is malformed or names a notebook that does not exist."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"profile {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"profile {path} must hold one section per notebook, such as 01_shapes:")
    about, seconds, online = content.pop("about", ""), content.pop("seconds", None) or {}, content.pop("online", False)
    apart = content.pop("apart", None) or []
    numbers = isinstance(seconds, dict) and all(isinstance(value, (int, float)) for value in seconds.values())
    if not isinstance(about, str) or not isinstance(online, bool) or not numbers:
        raise UsageError(f"profile {path}: about is {about!r}, online {online!r}, seconds {seconds!r}; give a text, "
                         "true or false, and notebooks with numbers, as {01_shapes: 15}")
    if not isinstance(apart, list) or any(name not in known for name in apart):
        raise UsageError(f"profile {path}: apart is {apart!r}; give a list of notebooks, of {', '.join(known)}")
    for name, section in content.items():
        if section and name not in known:
            raise UsageError(f"profile {path}: no notebook is called {name!r}: {nearest(str(name), known)}")
        if not isinstance(section or {}, dict):
            raise UsageError(f"profile {path}, {name}: a section holds lines of `parameter: value`, not {section!r}")
    return Profile(path.stem, about, {name: section or {} for name, section in content.items()}, seconds, online,
                   apart)


# ----------------------------------------------------------------------------------------------------------- parameters


def defaults_of(path: Path) -> dict[str, Value]:
    """name -> default of a notebook's parameters. UsageError for a default that is no constant or list of constants."""
    from papermill import inspect_notebook  # a slow import, which --help does not need

    written = {name: parameter["default"] for name, parameter in inspect_notebook(path).items()}
    defaults = {name: _constant(text) for name, text in written.items()}
    for name, text in written.items():
        if defaults[name] == text:
            raise UsageError(f"{path.name}: its parameters cell must hold constants and flat lists alone, not "
                             f"'{name} = {text}'")
    return defaults


def checked(name: str, default: Value, value: Value) -> Value:
    """`value` in the type of the default; UsageError where it has another type."""
    if isinstance(default, list):
        if not isinstance(value, list):
            raise UsageError(f"{name} is a list such as {default!r}, not {value!r}")
        nested = [member for member in value if not isinstance(member, (bool, int, float, str))]
        if nested:
            raise UsageError(f"{name} is a flat list; {nested[0]!r} cannot be a member")
        return [checked(f"a member of {name}", default[0], member) for member in value] if default else value
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[type(default)]
        raise UsageError(f"{name} is {kind} such as {default!r}, not {value!r}")
    return value


def parsed(name: str, default: Value, text: str) -> Value:
    """The value that a text of the command line means for a parameter; UsageError where it has another type.

    Lists are written [1, 2] or 1,2, or with semicolons where members hold commas ("kary:2;expansion:2,2,1"). Where the
    default is an empty list, members that look like numbers are numbers.
    """
    if isinstance(default, str):
        return text
    value = _constant(text)
    if isinstance(default, list) and not (text.startswith("[") and isinstance(value, list)):
        members = [part.strip() for part in text.split(";" if ";" in text else ",")]
        words = bool(default) and isinstance(default[0], str)
        value = [member if words else _constant(member) for member in members if member]
    return checked(name, default, value)


def _constant(text: str) -> Value:
    """A number, a truth value, a quoted text or a list as written; any other text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _apply(setting: str, names: Sequence[str], defaults: Mapping[str, Mapping[str, Value]],
           values: dict[str, dict[str, Value]], cwd: Path, notebooks: Path, typed: dict[str, str]) -> None:
    """Set one name=value in every chosen notebook that has the parameter."""
    name, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not name:
        raise UsageError(f"--set {setting!r}: write --set name=value")
    if name == RUN_DIR:
        raise UsageError(f"--set {name}: the folder follows from the run's name; use --run NAME")
    having = [notebook for notebook in defaults if name in defaults[notebook]]
    if having and not set(having) & set(names):
        raise UsageError(f"--set {name}: of the notebooks of this command none has it, but {', '.join(having)}")
    if not having:
        parameters = {parameter for notebook in names for parameter in defaults[notebook]} - {RUN_DIR}
        raise UsageError(f"--set {name}: no notebook has such a parameter: {nearest(name, parameters)}")
    for notebook in set(having) & set(names):
        value = parsed(f"--set {name}", defaults[notebook][name], text)
        values[notebook][name] = _from_notebooks(value, cwd, notebooks, typed)


def _from_notebooks(value: Value, cwd: Path, notebooks: Path, typed: dict[str, str]) -> Value:
    """A value whose paths, typed relative to `cwd`, are relative to the notebooks' folder; `typed` collects both forms.

    UsageError for a text that looks like a file of data where no such file exists.
    """
    if isinstance(value, list):
        return [_from_notebooks(member, cwd, notebooks, typed) for member in value]
    if isinstance(value, str) and "|" in value:  # a pair, TARGET|DRAFTER
        return "|".join(_from_notebooks(part.strip(), cwd, notebooks, typed) for part in value.split("|"))
    if not isinstance(value, str) or not ("/" in value or value.endswith(FILE_ENDINGS)):
        return value
    if (cwd / value).exists():
        path = os.path.relpath(cwd / value, notebooks)
        typed[path] = value
        return path
    if value.endswith(FILE_ENDINGS) and not (notebooks / value).exists():
        raise UsageError(f"there is no file {value} in {cwd}")
    return value
