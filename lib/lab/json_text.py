"""JSON of files that anyone may have written."""

import json
from collections.abc import Iterator
from pathlib import Path


def loads(text: str | bytes) -> object:
    """The value of a text. json.JSONDecodeError, a ValueError, also where it is nested beyond what can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """The places and texts of a file's lines that are not blank."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no log at {path.resolve()}; give a file of JSON Lines")
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig", errors="replace").split("\n"), 1):
        if line.strip():
            yield f"{path.name}, line {number}", line
