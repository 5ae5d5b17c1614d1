"""Draft settings as serving engines take them, each written as a line of text.

`registry` has every setting by name, and gives those for a drafter and a tree; `writers` has the forms of draft and
writes the lines; `weights` says where an engine finds a drafter's weights; `schedule` joins the batch sizes.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    registry=("ENGINES", "Engine", "Setting", "settings"),
    schedule=("scheduled",),
    weights=("places",),
    writers=("CHAIN", "DYNAMIC", "Dynamic"),
)
