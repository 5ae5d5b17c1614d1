"""Static shapes of a draft tree: by their own parameters, by family at any budget, and by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature

from lib.trees.grown_shapes import expected_accepted, optimal, reach, sparse, whole_number
from lib.trees.tree import NO_PARENT, ROOT, Tree

__all__ = ["FAMILIES", "at_budget", "chain", "comb", "expansion", "expected_accepted", "independent", "kary", "optimal",
           "parse", "reach", "sparse", "split_name", "star"]

# The families that figures and tables compare, each at any budget, with a short description.
FAMILIES = {
    "chain": "one path of favourites",
    "star": "candidates for the next token alone",
    "independent:2": "two chains that share the root",
    "independent:4": "four chains that share the root",
    "kary:2": "complete binary tree",
    "kary:3": "complete ternary tree",
    "comb:3": "a chain with two alternatives beside each node",
    "expansion:2,2,1": "SpecInfer <2,2,1>, then chains",
    "expansion:1,1,3,1,1,1,1,1": "SpecInfer <1,1,3,1,1,1,1,1>, then chains",
    "sparse": "largest path products by depth and rank (Medusa)",
    "optimal": "longest expected path by rank (Sequoia)",
}
ENDLESS = sys.maxsize
MOST_NODES = 1 << 16  # far more than one forward pass can verify; a typed "kary:9,9" must not fill the memory
# (depth of a node, whether all nodes of its path are favourites) -> its number of children
ChildCount = Callable[[int, bool], int]


def chain(length: int) -> Tree:
    """One path of favourites (Leviathan et al. 2023); length 0 drafts nothing."""
    return expansion([1] * _levels(length, "length", least=0))


def independent(count: int, length: int) -> Tree:
    """`count` chains of `length` nodes that share only the root: the drafter's best first tokens, each continued."""
    return expansion([whole_number(count, "count")] + [1] * (_levels(length, "length") - 1))


def kary(branching: int, depth: int) -> Tree:
    """The complete tree in which every node above `depth` has `branching` children."""
    return expansion([whole_number(branching, "branching")] * _levels(depth, "depth"))


def expansion(branching_by_depth: Sequence[int]) -> Tree:
    """<k1, k2, ...>: every node at depth d has k_(d+1) children (SpecInfer, section 3)."""
    branching = [whole_number(branches, "branching") for branches in branching_by_depth]
    nodes, width = 0, 1
    for branches in branching:
        width *= branches
        nodes = _few_enough(nodes + width)
    return _level_order(lambda depth, favourite: branching[depth], nodes)


def star(count: int) -> Tree:
    """`count` candidates for the next token and nothing below them: width without depth, the opposite of a chain."""
    return expansion([whole_number(count, "count")])


def comb(branching: int, depth: int) -> Tree:
    """A chain of favourites, each with `branching` - 1 siblings that have no children."""
    return _level_order(_comb(branching), branching * whole_number(depth, "depth"))


def at_budget(name: str, budget: int, *, acceptance=None) -> Tree:
    """A family at a budget: exactly `budget` draft nodes, for any budget from 0 on.

    "chain", "star", "independent:COUNT", "kary:BRANCHING", "comb:BRANCHING" and "expansion:K1,K2,..." take their first
    nodes in level order, left to right, so that the tree of a smaller budget is the beginning of a larger one; an
    expansion continues as chains below its last level (k = 1). "delayed:LENGTH,COUNT" is a path after which COUNT
    independent branches continue (delayed tree expansion, arXiv 2602.16994). "sparse", "optimal" and
    "optimal:MAX_DEPTH" are grown from `acceptance`: float[R] by rank, for "sparse" also float[D, R] by depth and rank.
    """
    key, numbers = split_name(name)
    family, budget = _REGISTRY[key], whole_number(budget, "budget", least=0)
    if family.grow is None:
        return _level_order(_made(name, family.children, *numbers), budget)
    if acceptance is None:
        raise ValueError(f"shape {name!r} is grown from measurements: pass acceptance=, the acceptance by rank")
    return _made(name, family.grow, acceptance, budget, *numbers)


def parse(shape: str | Tree, *, acceptance=None) -> Tree:
    """The tree of a name; a Tree passes through.

    Fixed shapes are "chain:5", "star:4", "independent:4x8" (count, length), "kary:2,3" (branching, depth), "comb:3,4",
    "expansion:2,2,1"; FAMILY@BUDGET is `at_budget`, as in "kary:2@16" or "optimal@32". ValueError names the
    part of the name that is wrong.
    """
    if isinstance(shape, Tree):
        return shape
    name, at, budget = str(shape).partition("@")
    if at:
        if not budget.isdecimal():
            raise ValueError(f"shape {shape!r} has budget {budget!r}: give a whole number after the @, as in 'chain@8'")
        return at_budget(name, int(budget), acceptance=acceptance)
    key, numbers = split_name(name)
    if _REGISTRY[key].fixed is None:
        raise ValueError(f"shape {shape!r} needs a budget: write '{name}@16'")
    return _made(name, _REGISTRY[key].fixed, *numbers)


@dataclass(frozen=True)
class _Family:
    """The functions that make a family's trees from the whole numbers of a name.

    fixed: from the family's own parameters. children: a node's number of children, for any budget. grow: from
    measured acceptance and a budget.
    """

    fixed: Callable[..., Tree] | None = None
    children: Callable[..., ChildCount] | None = None
    grow: Callable[..., Tree] | None = None


def _made(name: str, make: Callable, *arguments):
    """What a family's function makes. ValueError where it takes another count of numbers than the name gives."""
    try:
        signature(make).bind(*arguments)
    except TypeError:
        raise ValueError(f"shape {name!r} has too few or too many parameters: write a fixed shape ({_EXAMPLES}) or a "
                         "family at a budget ('kary:2@16', 'chain@8', 'optimal@32')") from None
    return make(*arguments)


def _expansion(first: int, *others: int) -> ChildCount:
    branching = [whole_number(branches, "branching") for branches in (first, *others)]
    return lambda depth, favourite: branching[depth] if depth < len(branching) else 1


def _kary(branching: int) -> ChildCount:
    whole_number(branching, "branching")
    return lambda depth, favourite: branching


def _comb(branching: int) -> ChildCount:
    whole_number(branching, "branching")
    return lambda depth, favourite: branching if favourite else 0


def _levels(count, name: str, least: int = 1) -> int:
    """The number of levels of a shape, each of at least one node."""
    return _few_enough(whole_number(count, name, least))


def _few_enough(nodes: int) -> int:
    """The number of nodes. ValueError if it exceeds `MOST_NODES`, before anything of that size is made."""
    if nodes > MOST_NODES:
        raise ValueError(f"the shape has {nodes} nodes or more, but at most {MOST_NODES} can be drafted: give fewer "
                         "branches, levels or budget")
    return nodes


def _level_order(children_of: ChildCount, nodes: int) -> Tree:
    """The first `nodes` draft nodes, level by level, left to right."""
    nodes, parents, level, depth = _few_enough(nodes), [NO_PARENT], [(ROOT, True)], 0
    while len(parents) <= nodes:
        below = []
        for parent, favourite in level:
            missing = nodes + 1 - len(parents)
            for rank in range(min(children_of(depth, favourite), missing) if missing else 0):
                below.append((len(parents), favourite and rank == 0))
                parents.append(parent)
        level, depth = below, depth + 1
    return Tree(parents)


_REGISTRY = {
    "chain": _Family(chain, lambda: _expansion(1)),
    "star": _Family(star, lambda: lambda depth, favourite: 0 if depth else ENDLESS),
    "independent": _Family(independent, lambda count: _expansion(count)),
    "kary": _Family(kary, _kary),
    "comb": _Family(comb, _comb),
    "expansion": _Family(lambda first, *others: expansion([first, *others]), _expansion),
    "delayed": _Family(children=lambda length, count: _expansion(*[1] * _levels(length, "length", least=0), count)),
    "sparse": _Family(grow=sparse),
    "optimal": _Family(grow=optimal),
}
_EXAMPLES = "'chain:5', 'star:4', 'independent:4x8', 'kary:2,3', 'comb:3,4', 'expansion:2,2,1'"


def split_name(name: str) -> tuple[str, list[int]]:
    """A name's family and its whole-number parameters: "kary" and [2, 3] for "kary:2,3"."""
    family, colon, parameters = name.strip().partition(":")
    if family not in _REGISTRY:
        raise ValueError(f"shape {name!r} is unknown: the families are {', '.join(_REGISTRY)}; write {_EXAMPLES}")
    pieces = re.split("[x,]", parameters) if colon else []
    if not all(piece.strip().isdecimal() for piece in pieces):
        raise ValueError(f"shape {name!r} has parameters {parameters!r}: give whole numbers, as in {_EXAMPLES}")
    return family, [int(piece) for piece in pieces]
