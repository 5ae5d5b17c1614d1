"""The text of installed Python packages: their files and docstrings, of which held-out prompts are cut."""

import ast
import importlib.metadata
import sysconfig
from dataclasses import dataclass
from hashlib import sha256
from inspect import cleandoc
from pathlib import Path
from typing import Iterator

LEFT_OUT = {
    "test",
    "tests",
    "testing",
    "_testing",
    "idlelib",
    "site-packages",
    "lib2to3",
    "turtledemo",
    "unicode",
    "_vendor",
}
BYTES = (600, 200_000)


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


def files(package: str) -> Iterator[tuple[str, Path]]:
    """The package's Python files, as (path inside the package, path on disk); package "python" is the standard library.

    Raises importlib.metadata.PackageNotFoundError where the package is not installed.
    """
    if package == "python":
        root = Path(sysconfig.get_paths()["stdlib"])
        found = [(path.relative_to(root).as_posix(), path) for path in root.rglob("*.py")]
    else:
        listed = importlib.metadata.files(package) or []
        found = [(file.as_posix(), Path(file.locate())) for file in listed if file.suffix == ".py"]
    return iter(sorted(pair for pair in found if not LEFT_OUT & set(Path(pair[0]).parts)))


def read(path: Path) -> str | None:
    """The text of a file, or None where it is not UTF-8, too short, too long, or a table of data rather than code."""
    if not path.is_file() or not BYTES[0] <= path.stat().st_size <= BYTES[1]:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return text if letters > 0.6 * len(text) and text.isascii() else None


def docstrings(text: str, at_least: int = 160) -> list[str]:
    """The docstrings of a module, its classes and functions that are long enough to be prose."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [cleandoc(doc) for doc in found if doc and len(doc) >= at_least]
