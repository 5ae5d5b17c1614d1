"""The parameters of a notebook: defaults in its `parameters` cell, types and ranges in a class."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Self, TypeVar

from click import UsageError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

Value = bool | int | float | str | list


def split(value: object) -> object:
    """The members of a list that is written as on a command line: 1,2, or with semicolons where members hold commas
    ("kary:2;expansion:2,2,1"); other values as they are.
    """
    if not isinstance(value, str):
        return value
    return [part for part in map(str.strip, value.split(";" if ";" in value else ",")) if part]


def distinct(members: list) -> list:
    """The members. ValueError where one is repeated."""
    for member in members:
        if members.count(member) > 1:
            raise ValueError(f"{member!r} is named twice; name each once")
    return members


Member = TypeVar("Member")
Listed = Annotated[list[Member], BeforeValidator(split)]
Distinct = Annotated[list[Member], BeforeValidator(split), AfterValidator(distinct)]
Some = Annotated[list[Member], Field(min_length=1), BeforeValidator(split), AfterValidator(distinct)]


class Parameters(BaseModel):
    """Values of a notebook's parameters; a subclass declares them. Texts of a command line become what fields hold."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Those of a mapping such as a notebook's globals. ValueError with a line for each fault."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ValueError("\n".join(map(sentence, error.errors()))) from None


def sentence(fault: Mapping) -> str:
    """One of pydantic's errors: the parameter, its value and what to give."""
    name = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "missing":
        return f"{name} is missing; set it in the notebook's `parameters` cell"
    if fault["type"] == "value_error":
        return f"{name}: {fault['ctx']['error']}" if name else str(fault["ctx"]["error"])
    return f"{name} is {fault['input']!r}; {fault['msg'][0].lower()}{fault['msg'][1:]}"


def defaults_of(notebook: Path) -> dict[str, Value]:
    """By name the defaults of a notebook. UsageError for one that is no constant and no list of constants."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    defaults = {}
    for statement in (line for cell in tagged for line in ast.parse("".join(cell["source"])).body):
        try:
            (target,) = statement.targets
            defaults[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError):
            raise UsageError(f"{notebook.name}: its parameters cell must hold constants and flat lists alone, not "
                             f"'{ast.unparse(statement)}'") from None
    return defaults


def class_of(defaults: Mapping[str, Value]) -> type[Parameters]:
    """The class of a notebook that has none of its own: each parameter has the type of its default."""
    kinds = {name: Listed[type(value[0]) if value else object] if isinstance(value, list) else type(value)
             for name, value in defaults.items()}
    return create_model("OfDefaults", __base__=Parameters, **{name: (kind, ...) for name, kind in kinds.items()})


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for an unknown name: the names most like it, or all names if none is."""
    names = sorted(names)
    close = get_close_matches(name, names, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
