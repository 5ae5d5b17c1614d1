"""A notebook's parameters: the constants of its cell tagged "parameters", and values for them checked against these."""

import ast
from pathlib import Path

import nbformat

from lib.lab.errors import UsageError

RUN_DIR = "run_dir"  # the runner's own: where a notebook leaves tables and figures
Value = bool | int | float | str | list


def defaults(path: Path) -> dict[str, Value]:
    """name -> default of a notebook's parameters; none where it has no such cell.

    UsageError where the cell holds anything but plain constants and flat lists of them.
    """
    cells = [cell for cell in nbformat.read(path, as_version=4).cells
             if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", [])]
    found: dict[str, Value] = {}
    for line in ast.parse("\n".join(cell.source for cell in cells)).body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        try:
            found[target.id] = ast.literal_eval(line.value)
        except (AttributeError, ValueError):
            raise UsageError(f"{path.name}: its parameters cell must hold constants and flat lists alone, "
                             f"not {ast.unparse(line)!r}") from None
    return found


def checked(name: str, default: Value, value: Value) -> Value:
    """`value` as the default's type has it; UsageError where it is of another."""
    if isinstance(default, list):
        if not isinstance(value, list):
            raise UsageError(f"{name} is a list such as {default!r}, not {value!r}")
        members = [_scalar(name, member) for member in value]
        return [checked(f"a member of {name}", default[0], member) for member in members] if default else members
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise UsageError(f"{name} is {_kind(default)} such as {default!r}, not {value!r}")
    return value


def parsed(name: str, default: Value, text: str) -> Value:
    """The value that a command line's text means for a parameter; UsageError where it means none.

    Lists: [1, 2] or 1,2; where members hold commas, separated by semicolons ("kary:2;expansion:2,2,1"). A list whose
    default is empty takes numbers for numbers.
    """
    if isinstance(default, list):
        return checked(name, default, _members(default, text))
    if isinstance(default, str):
        return text
    return checked(name, default, _constant(text))


def _members(default: list, text: str) -> list:
    whole = _constant(text) if text.startswith("[") else None
    if isinstance(whole, list):
        return whole
    members = [part.strip() for part in text.split(";" if ";" in text else ",")]
    words = bool(default) and isinstance(default[0], str)
    return [member if words else _constant(member) for member in members if member]


def _constant(text: str) -> Value:
    """A number, a truth value or a list as written; else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _scalar(name: str, value: Value) -> Value:
    if not isinstance(value, (bool, int, float, str)):
        raise UsageError(f"{name} is a flat list; {value!r} cannot be a member")
    return value


def _kind(value: Value) -> str:
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[type(value)]
