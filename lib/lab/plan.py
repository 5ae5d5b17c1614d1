"""From a command to a plan: which notebooks, with which parameters, into which run; mistakes in these are found here.

What values name (models, prompts, shapes) is looked up by `lib.studies.parameters`.
"""

import os
import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Mapping, Sequence

import yaml

from lib.lab import parameters
from lib.lab.errors import UsageError, nearest
from lib.lab.parameters import RUN_DIR, Value

REPORT = "09_report"
READ_BY_REPORT = ("02_acceptance", "03_attention_timing", "04_rules", "05_drafters", "06_advice", "07_speed")
FILE_ENDINGS = (".jsonl", ".json", ".txt", ".yaml", ".csv")


@dataclass(frozen=True)
class Layout:
    """Where things are; tests bring their own."""

    home: Path

    @property
    def notebooks(self) -> Path:
        """The notebooks' folder, with their profiles in `params`."""
        return self.home / "notebooks"

    @property
    def runs(self) -> Path:
        """The folder of all runs, ignored by git."""
        return self.home / "data" / "runs"

    def profiles(self) -> dict[str, Path]:
        """name -> file of the profiles that come with the project."""
        return {path.stem: path for path in sorted((self.notebooks / "params").glob("*.yaml"))}

    def stages(self) -> list[str]:
        """Names of the notebooks in the order of running: those that begin with a number."""
        return sorted(path.stem for path in self.notebooks.glob("[0-9]*.ipynb"))


@dataclass(frozen=True)
class Profile:
    """A named set of values: notebook -> parameter -> value; seconds: about how long each notebook takes with them.

    `online`: notebooks may ask the hub for models.
    """

    name: str
    about: str
    values: Mapping[str, Mapping[str, Value]]
    seconds: Mapping[str, float]
    online: bool


@dataclass(frozen=True)
class Stage:
    """One notebook, values that differ from its defaults, and about how many seconds it takes (None: unknown)."""

    name: str
    values: Mapping[str, Value]
    seconds: float | None


@dataclass(frozen=True)
class Plan:
    """What a command asks for: its stages in order, of all there are (`known`), and the run that they belong to."""

    layout: Layout
    profile: Profile
    run: str
    stages: tuple[Stage, ...]
    known: tuple[str, ...]
    start: str | None = None  # --from
    reference: bool = False
    command: Sequence[str] = field(default=())

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.layout.runs / self.run


def make(layout: Layout, words: Sequence[str], *, settings: Sequence[str] = (), run: str | None = None,
         start: str | None = None, reference: bool = False, cwd: Path | None = None,
         command: Sequence[str] = ()) -> Plan:
    """The plan of a command. words: at most one profile and any number of notebooks; settings: name=value, for every
    notebook that has the parameter; start: the notebook to go on from. UsageError names what is wrong.
    """
    known = layout.stages()
    if not known:
        raise UsageError(f"no notebooks in {layout.notebooks}")
    chosen, profile = _sorted_out(layout, words, known)
    names = [name for name in known if name in chosen] if chosen else known
    if reference and chosen:
        raise UsageError("--reference takes all notebooks; leave out " + ", ".join(sorted(chosen)))
    defaults = {name: parameters.defaults(layout.notebooks / f"{name}.ipynb") for name in known}
    values = {name: _profile_values(profile, name, defaults[name]) for name in known}
    for setting in settings:
        _apply(setting, names, defaults, values, cwd or Path.cwd(), layout.notebooks)
    run = _run_name(run or ("reference" if reference else _default_run(profile.name, settings)))
    where = os.path.relpath(layout.runs / run, layout.notebooks)
    stages = tuple(
        Stage(name, values[name] | ({RUN_DIR: where} if RUN_DIR in defaults[name] else {}), profile.seconds.get(name))
        for name in names)
    start = notebook_named(start, known) if start else None
    if start and start not in names:
        raise UsageError(f"--from {start}: it is not among the notebooks of this command, {', '.join(names)}")
    return Plan(layout, profile, run, stages, tuple(known), start, reference, tuple(command))


def notebook_named(word: str, known: Sequence[str]) -> str:
    """The notebook that a name, the part of it after the number, or a number means."""
    found = find_notebook(word, known)
    if found is None:
        raise UsageError(f"no notebook is called {word!r}: {nearest(word, known)}")
    return found


def find_notebook(word: str, known: Sequence[str]) -> str | None:
    """As `notebook_named`, None where there is no such notebook."""
    word = Path(word).name.removesuffix(".ipynb")
    for name in known:
        number, _, rest = name.partition("_")
        if word in (name, rest) or (word.isdecimal() and number.isdecimal() and int(word) == int(number)):
            return name
    return None


def load_profile(path: Path, known: Sequence[str]) -> Profile:
    """A profile file. UsageError where it is no such file, or names a notebook that is not there."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"profile {path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"profile {path} must hold one section a notebook, such as 01_shapes:")
    head = {key: content.pop(key, empty) for key, empty in (("about", ""), ("seconds", {}), ("online", False))}
    _check_head(path, head)
    for name, section in content.items():
        if section and name not in known:
            raise UsageError(f"profile {path}: no notebook is called {name!r}: {nearest(str(name), known)}")
        if not isinstance(section or {}, dict):
            raise UsageError(f"profile {path}, {name}: a section holds lines of `parameter: value`, not {section!r}")
    return Profile(path.stem, head["about"], {name: section or {} for name, section in content.items()},
                   head["seconds"] or {}, head["online"])


def _check_head(path: Path, head: Mapping[str, object]) -> None:
    """UsageError where what a profile says of itself is of another kind than it should be."""
    if not isinstance(head["about"], str) or not isinstance(head["online"], bool):
        raise UsageError(f"profile {path}: about is {head['about']!r}, online {head['online']!r}; give a text, and "
                         "true or false")
    seconds = head["seconds"] or {}
    if not isinstance(seconds, dict) or not all(isinstance(taken, (int, float)) for taken in seconds.values()):
        raise UsageError(f"profile {path}: seconds is {seconds!r}; give notebooks with numbers, as {{01_shapes: 15}}")


def _sorted_out(layout: Layout, words: Sequence[str], known: Sequence[str]) -> tuple[set[str], Profile]:
    """The notebooks among the words, and the profile among them (cpu without one)."""
    profiles, chosen, asked = layout.profiles(), set(), []
    for word in words:
        if word in profiles:
            asked.append(profiles[word])
        elif (notebook := find_notebook(word, known)) is not None:
            chosen.add(notebook)
        elif word.endswith((".yaml", ".yml")) and Path(word).is_file():
            asked.append(Path(word))
        elif word == "test":
            raise UsageError("'test' goes with no profile or notebook; write ./run_notebooks.sh test alone")
        else:
            raise UsageError(f"{word!r} is neither a profile, a profile's file nor a notebook: "
                             f"{nearest(word, [*profiles, *known, 'test'])}")
    if len(asked) > 1:
        raise UsageError(f"one profile at a time, not {' and '.join(path.stem for path in asked)}")
    if not asked and "cpu" not in profiles:
        raise UsageError(f"the default profile, cpu, is not in {layout.notebooks / 'params'}")
    return chosen, load_profile(asked[0] if asked else profiles["cpu"], known)


def _profile_values(profile: Profile, notebook: str, defaults: Mapping[str, Value]) -> dict[str, Value]:
    """What a profile sets of a notebook, checked. UsageError for a parameter that it has not."""
    values = {}
    for name, value in profile.values.get(notebook, {}).items():
        where = f"profile {profile.name}, {notebook}"
        if name not in defaults or name == RUN_DIR:
            hint = nearest(str(name), set(defaults) - {RUN_DIR})
            raise UsageError(f"{where}: no parameter is called {name!r}: {hint}")
        values[name] = parameters.checked(f"{where}: {name}", defaults[name], value)
    return values


def _apply(setting: str, names: Sequence[str], defaults: Mapping[str, Mapping[str, Value]],
           values: dict[str, dict[str, Value]], cwd: Path, notebooks: Path) -> None:
    """Put one name=value into every chosen notebook that has the parameter."""
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set {setting!r}: write --set name=value")
    name = name.strip()
    if name == RUN_DIR:
        raise UsageError(f"--set {name}: the folder follows from the run's name; use --run NAME")
    having = [notebook for notebook in names if name in defaults[notebook]]
    if not having:
        elsewhere = [notebook for notebook in defaults if name in defaults[notebook]]
        if elsewhere:
            raise UsageError(f"--set {name}: of the notebooks of this command none has it, but {', '.join(elsewhere)}")
        every = {parameter for notebook in names for parameter in defaults[notebook]} - {RUN_DIR}
        raise UsageError(f"--set {name}: no notebook has such a parameter: {nearest(name, every)}")
    for notebook in having:
        value = parameters.parsed(f"--set {name}", defaults[notebook][name], text.strip())
        values[notebook][name] = _from_here(value, cwd, notebooks)


def _from_here(value: Value, cwd: Path, notebooks: Path) -> Value:
    """A path that was written as seen from where the command was given, as seen from the notebooks' folder.

    UsageError where a text is spelt as a file of data but there is none.
    """
    if isinstance(value, list):
        return [_from_here(member, cwd, notebooks) for member in value]
    if isinstance(value, str) and "|" in value:  # a pair, TARGET|DRAFTER
        return "|".join(_from_here(part.strip(), cwd, notebooks) for part in value.split("|"))
    if not isinstance(value, str) or not ("/" in value or value.endswith(FILE_ENDINGS)):
        return value
    if (cwd / value).exists():
        return os.path.relpath(cwd / value, notebooks)
    if value.endswith(FILE_ENDINGS) and not (notebooks / value).exists():
        raise UsageError(f"there is no file {value} in {cwd}")
    return value


def _default_run(profile: str, settings: Sequence[str]) -> str:
    """The profile's name, and what was set: another set of values does not write over a finished run."""
    said = "-".join([profile, *settings])
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", said).strip("-.")
    return name if len(name) <= 80 else f"{name[:71]}-{sha256(said.encode()).hexdigest()[:8]}"


def _run_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]*", name):
        raise UsageError(f"--run {name!r}: a run's name has letters, digits and . _ = - alone")
    return name
