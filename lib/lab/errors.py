"""Errors that a user meets: one message, with the nearest names that would have been right."""

from difflib import get_close_matches
from typing import Iterable


class UsageError(Exception):
    """The command cannot be carried out as given; nothing has run."""


class StageFailed(Exception):
    """A notebook stopped with an error; what was finished before it is kept."""


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for a name that is none of `names`: the ones most like it, or all if none is."""
    names = sorted(names)
    close = get_close_matches(name, names, n=3, cutoff=0.5) or [other for other in names if name and name in other]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names)}" if names else "there are none"
