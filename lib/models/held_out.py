"""Held-out prompts of real text: a recipe finds the text in an installed package, so that it is not copied here.

`files`, `read` and `docstrings` give the text of installed packages, of which recipes name a part.
"""

import ast
import importlib.metadata
import sysconfig
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from inspect import cleandoc
from pathlib import Path
from typing import Iterator

PARTS = {"package", "path", "sha256", "part", "start", "end"}  # of a recipe
LEFT_OUT = {"test", "tests", "testing", "_testing", "idlelib", "site-packages", "lib2to3", "turtledemo", "unicode",
            "_vendor"}
BYTES = (600, 200_000)  # of a file: the least and the most


@dataclass(frozen=True)
class Source:
    """One file: its package, its path inside the package, its text, and whether it is held out."""

    package: str
    path: str
    text: str
    held_out: bool

    @property
    def digest(self) -> str:
        """SHA-256 of the text, by which a recipe names it."""
        return sha256(self.text.encode()).hexdigest()


def resolve(recipe: dict) -> str:
    """The text that a recipe names: package, path, sha256, part ("file" or "docstrings"), start and end in characters.

    LookupError where the installed file differs from the recipe's.
    """
    name = f"{recipe['package']}: {recipe['path']}"
    try:
        path = _files(recipe["package"])[recipe["path"]]
    except (KeyError, importlib.metadata.PackageNotFoundError):
        raise LookupError(f"{name} is not installed; install requirements.txt") from None
    source = Source(recipe["package"], recipe["path"], read(path) or "", held_out=True)
    if source.digest != recipe["sha256"]:
        raise LookupError(f"{name} differs from the file that the prompt was cut from; install the versions of "
                          "requirements.txt")
    return part_of(source.text, recipe["part"])[recipe["start"] : recipe["end"]]


@cache
def _files(package: str) -> dict[str, Path]:
    return dict(files(package))


def part_of(text: str, part: str) -> str:
    """The text itself ("file"), or its docstrings with blank lines between them ("docstrings")."""
    return "\n\n".join(docstrings(text)) if part == "docstrings" else text


def files(package: str) -> Iterator[tuple[str, Path]]:
    """The package's Python files, as (path inside the package, path on disk); package "python" is the standard library.

    Raises importlib.metadata.PackageNotFoundError where the package is not installed.
    """
    if package == "python":
        root = Path(sysconfig.get_paths()["stdlib"])
        paths = [(path.relative_to(root).as_posix(), path) for path in root.rglob("*.py")]
    else:
        listed = importlib.metadata.files(package) or []
        paths = [(file.as_posix(), Path(file.locate())) for file in listed if file.suffix == ".py"]
    return iter(sorted(pair for pair in paths if not LEFT_OUT & set(Path(pair[0]).parts)))


def read(path: Path) -> str | None:
    """The text of a file, or None where it is not UTF-8, too short, too long, or a table of data instead of code."""
    if not path.is_file() or not BYTES[0] <= path.stat().st_size <= BYTES[1]:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return text if letters > 0.6 * len(text) and text.isascii() else None


def docstrings(text: str, at_least: int = 160) -> list[str]:
    """The docstrings of a module, its classes and functions that have `at_least` characters."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = [ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [cleandoc(doc) for doc in docs if doc and len(doc) >= at_least]
