"""Files of JSON, one value per line, read strictly: what `json.loads` would let through or change is refused."""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

OTHER_FORMS = {  # how files of other forms begin
    rb"\xff\xfe|\xfe\xff|\0|.\0": "in UTF-16", rb"PAR1": "a Parquet file", rb"PK\x03\x04": "a zip archive",
    rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ": "compressed, and not by gzip",
    rb"\s*(data|event):": "a stream of events, in which an answer is in pieces",
    rb"[^\n{]*\b(DEBUG|INFO|WARNING)\b": "a server's own log, which has no outputs"}


def texts(path: str | Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file that are not blank, by their places ("line 3"), or the members of an array ("item 3"). It may
    be compressed by gzip. ValueError for a file of another form, and OSError where it cannot be read.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file of JSON Lines")
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file ({error}); compress it again") from None
    for begin, form in OTHER_FORMS.items():
        if re.match(begin, data, re.DOTALL):
            raise ValueError(f"{path} is {form}; give JSON Lines in UTF-8, as they are or compressed by gzip")
    lines, place = data.split(b"\n"), "line"
    with suppress(ValueError):  # of a file of several values
        whole = parsed(data)  # which may stand on several lines
        place = "item" if isinstance(whole, list) else "line"
        lines = [json.dumps(member).encode() for member in (whole if place == "item" else [whole])]
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{place} {number}", line


def parsed(text: bytes | str) -> object:
    """The value of a JSON text. ValueError for what is no JSON in UTF-8, halves of characters, fields that stand twice,
    and numbers that need more than 64 bits.
    """
    try:
        value = json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text, parse_int=_integer,
                           parse_float=_float, parse_constant=_float, object_pairs_hook=_object)
        json.dumps(value, ensure_ascii=False).encode()  # an error where an escape is half of a character
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON in UTF-8 ({error})") from None
    return value


def typed(body: Mapping[str, object], name: str, kind, default=None):
    """A field that is of a type, or of one of several; the default where it is absent or null."""
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} is {value!r:.60}, a value of another type")
    return default if value is None else value


def name_of(row: Mapping[str, object], fields: Sequence[str], default: str) -> str:
    """The first of these fields that a row has, as tables take it: a number, or a text without line breaks."""
    for field in fields:
        if (value := typed(row, field, (str, int, float))) not in (None, ""):
            if {*"\r\n\0"} & {*str(value)}:
                raise ValueError(f"{field} is {value!r:.60}; give a name without line breaks")
            return str(value)
    return default


def mapping(value: object, what: str) -> Mapping[str, object]:
    """An object, also in a text that is its JSON."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = parsed(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {value!r:.60}, no object")
    return value


def _integer(digits: str) -> int:
    if not -1 << 63 <= (value := int(digits)) < 1 << 64:
        raise ValueError(f"the number {digits:.40} needs more than 64 bits")
    return value


def _float(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits:.40} is no finite number")
    return value


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    if len(value := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return value
