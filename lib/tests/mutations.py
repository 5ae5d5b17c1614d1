"""Broken files of JSON Lines: a reader refuses them, or finds in them nothing that the whole file does not hold."""

import json
import random

ODD = (None, True, 0, -1, 1.5, 2**70, float("nan"), "", "x", "\ud800", [], [None], {}, {"a": 1}, -2**31)
KINDS = ("value", "value", "value", "field", "cut", "byte", "twice")


def places(value):
    """The holders and keys of all values inside a value, of long lists the first."""
    members = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    return [place for key, member in members for place in ((value, key), *places(member))]


def check(read, lines, path, count=200):
    """`read` gives the set of what is in the file at a path. It has its own error for files in which a line has a value
    of another kind or lacks a field, is cut off, has a byte that is no text, or stands twice; or nothing else is there.
    """
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n \r\n".join(lines).encode())
    whole, refused = read(path), 0
    for seed in range(count):
        generator = random.Random(seed)
        number, kind = generator.randrange(len(lines)), generator.choice(KINDS)
        row = json.loads(lines[number])
        holder, key = generator.choice(places(row))
        if kind == "value":
            holder[key] = generator.choice([value for value in ODD if type(value) is not type(holder[key])])
        elif kind == "field" and isinstance(holder, dict):
            del holder[key]
        text = json.dumps(row).encode()
        cut = generator.randrange(len(text))
        broken = {"cut": text[:cut], "byte": text[:cut] + b"\xe9" + text[cut:], "twice": text + b"\n" + text}
        written = [*map(str.encode, lines)]
        written[number] = broken.get(kind, text)
        path.write_bytes(b"\n".join(written))
        try:
            assert read(path) <= whole, f"seed {seed}"
        except ValueError as error:
            assert type(error) is ValueError and str(path) in str(error), f"seed {seed}"
            refused += 1
    assert 0 < refused < count
