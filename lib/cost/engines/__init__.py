"""Draft settings as serving engines take them, each written as a line of text.

`registry` has every setting by name, and gives those for a drafter and a tree. `forms` are the forms of draft, `choices`
the engines configured in Python, `servers` those configured on the command line.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    forms=("CHAIN", "DYNAMIC", "LEVELS", "TREE", "Dynamic", "equal_levels"),
    registry=("ENGINES", "Engine", "Setting", "settings"),
)
