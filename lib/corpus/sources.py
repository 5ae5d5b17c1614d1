"""Source code and docstrings of the installed standard library and packages, without tests and near-copies, split by
file.
"""

import ast
import importlib.metadata
import re
import sysconfig
from dataclasses import dataclass
from hashlib import sha256
from inspect import cleandoc
from pathlib import Path
from typing import Iterator

from lib.corpus.lexicon import is_held_out

# Permissively licensed packages that the requirements bring, most general first: of near-copies the first one stays.
PACKAGES = (
    "numpy",
    "pandas",
    "matplotlib",
    "networkx",
    "sympy",
    "torch",
    "transformers",
    "fonttools",
    "Pygments",
    "huggingface_hub",
    "setuptools",
    "ipython",
    "mpmath",
    "pytest",
    "prompt_toolkit",
    "rich",
    "pillow",
    "seaborn",
    "tornado",
    "jedi",
    "jupyter_server",
    "fsspec",
    "bleach",
    "anyio",
    "Jinja2",
    "packaging",
    "pyparsing",
    "babel",
    "urllib3",
    "beautifulsoup4",
    "jupyter_client",
    "psutil",
    "ipykernel",
    "python-dateutil",
    "traitlets",
    "nbconvert",
    "parso",
    "ipywidgets",
    "PyYAML",
)
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
FILES_HELD_OUT_ONE_IN = 25
BYTES = (600, 200_000)
SEEN_LINES_ALLOWED = {"train": 0.5, "held_out": 0.2}


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


def sources(packages: tuple[str, ...] = ("python", *PACKAGES)) -> list[Source]:
    """All files of the packages but near-copies; training files first decide what a held-out file may not repeat."""
    read_in = [(package, name, text) for package in packages for name, path in files(package) if (text := read(path))]
    split = {True: [], False: []}
    for package, name, text in read_in:
        split[is_held_out("file", package, name, one_in=FILES_HELD_OUT_ONE_IN)].append((package, name, text))
    seen: set[int] = set()
    kept = []
    for held_out in (False, True):
        allowed = SEEN_LINES_ALLOWED["held_out" if held_out else "train"]
        for package, name, text in split[held_out]:
            shingles = _shingles(text)
            if shingles and len(shingles & seen) <= allowed * len(shingles):
                kept.append(Source(package, name, text, held_out))
                seen |= shingles
    return kept


def docstrings(text: str, at_least: int = 160) -> list[str]:
    """The docstrings of a module, its classes and functions that are long enough to be prose."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [cleandoc(doc) for doc in found if doc and len(doc) >= at_least]


def _shingles(text: str, lines: int = 3) -> set[int]:
    kept = [stripped for line in text.splitlines() if len(stripped := re.sub(r"\s+", " ", line.strip())) > 8]
    return {hash(tuple(kept[i : i + lines])) for i in range(max(1, len(kept) - lines + 1))} if kept else set()
