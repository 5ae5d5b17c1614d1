"""The parameters of a notebook: defaults in its `parameters` cell, types and ranges in a class."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Self, TypeVar

from click import UsageError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Value = bool | int | float | str | list


def pieces(text: str) -> list[str]:
    """A text cut at its separators | , ; which stand between its parts; a path that exists is one part."""
    parts, cut = re.split(r"([|,;]\s*)", text), []
    while parts:
        wholes = (count for count in range(len(parts), 1, -2)
                  if os.path.exists(os.path.expanduser("".join(parts[:count]).strip())))
        count = next(wholes, 1)
        cut += ["".join(parts[:count]), *parts[count : count + 1]]
        parts = parts[count + 1 :]
    return cut


def split(value: object) -> object:
    """The members of a list that is written as on a command line: 1,2, or with semicolons where members hold commas
    ("kary:2;expansion:2,2,1"), unless it is the comma of a path that exists; other values as they are.
    """
    if not isinstance(value, str):
        return value
    cut = pieces(value)
    separator = ";" if any(part.startswith(";") for part in cut[1::2]) else ","
    text = "".join("\0" if number % 2 and part.startswith(separator) else part for number, part in enumerate(cut))
    return [member for member in map(str.strip, text.split("\0")) if member]


Member = TypeVar("Member")
ONCE = AfterValidator(lambda members: list(dict.fromkeys(members)))  # each member
Listed = Annotated[list[Member], BeforeValidator(split)]
Distinct = Annotated[list[Member], BeforeValidator(split), ONCE]
Some = Annotated[list[Member], Field(min_length=1), BeforeValidator(split), ONCE]


class Parameters(BaseModel):
    """Values of a notebook's parameters; a subclass declares them. Texts of a command line become what fields hold."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Those of a mapping such as a notebook's globals. ValueError with a line for each fault."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError("\n".join(map(sentence, error.errors()))) from None


def sentence(fault: Mapping) -> str:
    """One of pydantic's errors: the parameter, its value and what to give."""
    name, text = "".join(map(str, fault["loc"][:1])), fault["msg"].removeprefix("Value error, ")
    if fault["type"] in ("missing", "value_error"):
        return f"{name}: {text}" if name else text
    return f"{name} is {fault['input']!r}: {text}".strip()


def defaults_of(notebook: Path) -> dict[str, Value]:
    """By name the defaults of a notebook. UsageError for one that is no constant and no list of constants."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    try:
        return {statement.targets[0].id: ast.literal_eval(statement.value)
                for statement in ast.parse("\n".join(sources)).body}
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{notebook.name}: its parameters cell must hold constants and lists alone: {error}") from None


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for an unknown name: the names most like it, or all names if none is."""
    names = sorted(names)
    close = get_close_matches(name, names, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
