"""Drafters: models and methods that propose a tree of draft tokens. One file per drafter, on one base class.

Start at `drafter` (the base classes) and `registry` (`make`, and every kind by name). `filling` fills static shapes and
grows trees, `levels` has their forward passes; `text_index` finds earlier text; `vocabulary` has the tokens of a draft
model; `heads` holds trained heads.
"""

from lib.drafters.registry import DRAFTERS, Kind, make, parse

__all__ = ["DRAFTERS", "Kind", "make", "parse"]
