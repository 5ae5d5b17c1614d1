"""A growth rule that ends earlier: what is left of it where a text has come near the end of a window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.trees.growth.candidates import Candidates, Growth
from lib.trees.growth.marginals import DDTree
from lib.trees.tree import Tree


@dataclass(frozen=True)
class _Shallower:
    """What both kinds have in common: another rule's name and budget."""

    rule: Growth | DDTree
    max_depth: int

    @property
    def name(self) -> str:
        """The whole rule's."""
        return self.rule.name

    @property
    def budget(self) -> int:
        """The whole rule's: it may be spent on fewer levels."""
        return self.rule.budget


class ShallowerByNode(_Shallower):
    """A rule over one distribution a node, for fewer levels."""

    @property
    def width(self) -> int:
        """The whole rule's."""
        return self.rule.width

    def expand(self, candidates: Candidates) -> np.ndarray:
        """As the whole rule says; nobody asks at the last level."""
        return self.rule.expand(candidates)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """As the whole rule says."""
        return self.rule.keep(candidates)


class ShallowerByDepth(_Shallower):
    """A rule over one distribution a depth, for fewer depths."""

    def tree(self, marginals: np.ndarray) -> Tree:
        """The whole rule's tree of the first depths of marginals float[D, K]."""
        return self.rule.tree(np.asarray(marginals)[: self.max_depth])


def at_most(rule: Growth | DDTree, depth: int) -> Growth | DDTree:
    """The rule with trees of at most so many levels; itself where it has no more."""
    if getattr(rule, "max_depth", rule.budget) <= depth:
        return rule
    return (ShallowerByNode if hasattr(rule, "expand") else ShallowerByDepth)(rule, depth)
