"""Held-out prompts of real text: a recipe finds the text again in the installed packages, which it is not copied from."""

import importlib.metadata
from functools import cache
from pathlib import Path

from lib.models.source_text import Source, docstrings, files, read

REAL_KINDS = ("code", "prose")  # kinds of the family's prompts that are real text; generators wrote the others
PARTS = {"package", "path", "sha256", "part", "start", "end"}  # of a recipe


def resolve(source: dict) -> str:
    """The text that a recipe names: package, path, sha256, part ("file" or "docstrings"), start and end in characters.

    LookupError where the installed file is another one than the recipe's.
    """
    try:
        path = _files(source["package"])[source["path"]]
    except (KeyError, importlib.metadata.PackageNotFoundError):
        raise LookupError(f"{source['package']}: {source['path']} is not installed; install requirements.txt") from None
    found = Source(source["package"], source["path"], read(path) or "", held_out=True)
    if found.digest != source["sha256"]:
        raise LookupError(f"{source['package']}: {source['path']} differs from the one that the prompt was cut from; "
                          "install the versions of requirements.txt")
    return part_of(found.text, source["part"])[source["start"] : source["end"]]


@cache
def _files(package: str) -> dict[str, Path]:
    return dict(files(package))


def part_of(text: str, part: str) -> str:
    return "\n\n".join(docstrings(text)) if part == "docstrings" else text
