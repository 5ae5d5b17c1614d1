"""Drafters: models and methods that propose a tree of draft tokens. One file per drafter, on one base class.

Start at `drafter` (the base class) and `registry` (`make`, and every kind by name). `filling` fills static shapes
and grows trees by a rule, `levels` has their forward passes, `vocabulary` chooses the tokens of a draft model; `heads`
holds trained heads.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    drafter=("Drafter", "NoDrafter"),
    registry=("DRAFTERS", "Kind", "make", "parse"),
)
