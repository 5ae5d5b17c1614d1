"""Trees by name: `named` reads "family:numbers@budget", and `FAMILIES` has a row for each family that it knows."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from inspect import signature
from typing import NamedTuple

from lib.trees import shapes
from lib.trees.growth import DEPTH, BestFirst, Costs, Eagle2, Growth
from lib.trees.shapes import level_order
from lib.trees.tree import Tree

FREQUENT = "frequent"  # the family of the most frequent rank paths of a trace, which stands for no name here
CHAIN, TREE, GROWN = "chain", "static tree", "grown tree"  # the forms of a family
# Families that figures and tables compare, if a run names no others.
COMPARED = ("chain", "star", "independent:2", "independent:4", "kary:2", "kary:3", "comb:3", "expansion:2,2,1",
            "expansion:1,1,3,1,1,1,1,1", "sparse", "optimal")
NUMBER = re.compile(r"\d+(\.\d+)?(e-\d+)?")  # whole, or a fraction such as 0.05 or 1e-05


class Family(NamedTuple):
    """The sentence on a family that reports print, examples of its names, and what a name's numbers make: with a
    budget before them (and a keyword for a measurement that it needs), and without one.
    """

    summary: str
    example: str
    at_budget: Callable[..., Tree | Growth]
    fixed: Callable[..., Tree] | None = None
    form: str = TREE


FAMILIES = {
    "chain": Family("one path of favourites", "chain:8 or chain@8", shapes.chain, shapes.chain, CHAIN),
    "star": Family("candidates for the next token alone", "star:4 or star@4", shapes.star, shapes.star),
    "independent": Family("K chains that share only the root", "independent:4x8 (count, length) or independent:4@32",
                          lambda budget, count: level_order(budget, [count]), shapes.independent),
    "kary": Family("complete tree, K children per node", "kary:2,3 (branching, depth) or kary:2@16",
                   lambda budget, branching: level_order(budget, then=branching), shapes.kary),
    "comb": Family("a chain with K - 1 alternatives beside each node", "comb:3@16",
                   lambda budget, branching: level_order(budget, then=branching, favourites_only=True)),
    "expansion": Family("SpecInfer's branching by depth, then chains", "expansion:2,2,1 or expansion:2,2,1@32",
                        lambda budget, first, *others: level_order(budget, [first, *others]),
                        lambda first, *others: shapes.expansion([first, *others])),
    "sparse": Family("largest path products by depth and rank (Medusa)", "sparse@32",
                     lambda budget, *, acceptance: shapes.sparse(acceptance, budget)),
    "optimal": Family("longest expected path by rank (Sequoia)", "optimal@32 or optimal:4@32 (depth)",
                      lambda budget, depth=None, *, acceptance: shapes.optimal(acceptance, budget, depth)),
    "eagle2": Family("best WIDTH of each of DEPTH levels expanded, reranked (EAGLE-2)", "eagle2:4,6@32 (width, depth)",
                     lambda budget, width, depth: Eagle2(budget, depth, width), form=GROWN),
    "dyspec": Family("largest path products, best first (DySpec)", "dyspec@32 or dyspec:8@32 (depth)",
                     lambda budget, depth=DEPTH: BestFirst(budget, depth), form=GROWN),
    "ddtree": Family("largest products of one distribution per depth (DDTree)", "ddtree@32 or ddtree:8@32 (depth)",
                     lambda budget, depth=DEPTH: BestFirst(budget, depth, "ddtree"), form=GROWN),
    "opttree": Family("best WIDTH of each level expanded until a level gains at most DELTA (OPT-Tree)",
                      "opttree@32 or opttree:32,8,0.1@64 (width, depth, delta)",
                      lambda budget, width=None, depth=DEPTH, delta=0.0: BestFirst(
                          budget, depth, "opttree", budget if width is None else width, delta), form=GROWN),
    "smart": Family("grown while it makes a round faster (SMART)", "smart@32 or smart:8@32 (depth), with costs=",
                    lambda budget, depth=DEPTH, *, costs: BestFirst(budget, depth, "smart", costs=costs), form=GROWN),
}


def named(name: str | Tree | Growth, *, acceptance=None, costs: Costs | None = None) -> Tree | Growth:
    """The tree or growth rule of a name, "FAMILY:NUMBERS@BUDGET"; a Tree or a growth rule passes through.

    "kary:2@16" is a family at a budget (exactly 16 draft nodes, the first in level order), "kary:2,3" a fixed shape,
    "eagle2:4,6@32" a rule that grows a tree of at most 32 nodes in each round.
    acceptance: float[R] by rank, for "sparse" also float[D, R] by depth and rank. costs: of a round, for "smart".
    ValueError names the name and how to write it, or the number that is wrong.
    """
    if isinstance(name, (Tree, Growth)):
        return name
    if not isinstance(name, str):
        raise ValueError(f"shape is {name!r}; give a name such as 'kary:2@16', a Tree, or a growth rule")
    return _read_once(name) if acceptance is None and costs is None else _read(name, acceptance, costs)


def form_of(name: str) -> str:
    """CHAIN, TREE or GROWN; a label that is no name, such as that of a tree from recorded text, stands for a TREE."""
    family = FAMILIES.get(re.split("[:@]", name, maxsplit=1)[0])
    return family.form if family else TREE


def family_and_nodes(name: str) -> tuple[str, int]:
    """The family of a tree's name with its numbers, and its draft nodes: ("kary:2", 16) of "kary:2@16", and
    ("chain", 8) of "chain:8".
    """
    family, at, budget = name.partition("@")
    return (family, int(budget)) if at else ("chain" if form_of(name) == CHAIN else name, named(name).budget)


def _read(name: str, acceptance=None, costs: Costs | None = None) -> Tree | Growth:
    before, at, budget = name.strip().partition("@")
    key, _, numbers = before.partition(":")
    if key not in FAMILIES:
        raise ValueError(f"{name!r} is unknown: the families are {', '.join(FAMILIES)}")
    family = FAMILIES[key]
    unreadable = ValueError(f"{name!r} cannot be read: write {family.example}")
    make, pieces = (family.at_budget, [budget]) if at else (family.fixed, [])
    pieces += re.split("[x,]", numbers) if numbers else []
    if make is None or not all(map(NUMBER.fullmatch, pieces)):
        raise unreadable
    arguments = [int(number) if number.is_integer() else number for number in map(float, pieces)]
    measurements = {needed: measurement for needed, measurement in (("acceptance", acceptance), ("costs", costs))
                    if needed in signature(make).parameters}
    try:
        signature(make).bind(*arguments, **measurements)
    except TypeError:
        raise unreadable from None
    if missing := [needed for needed, measurement in measurements.items() if measurement is None]:
        raise ValueError(f"{name!r} is grown from measurements: pass {missing[0]}=")
    return make(*arguments, **measurements)


_read_once = lru_cache(maxsize=256)(_read)  # one object per name, so that values cached for it need no comparison
