"""Drafters: whatever proposes a tree of tokens. One file per drafter, on one base class.

Start at `protocol` (what the decoding loop asks of a drafter) and `registry` (`make`, every kind by name).
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    protocol=("Drafter",),
    registry=("DRAFTERS", "Kind", "make", "parse"),
)
