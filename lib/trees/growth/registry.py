"""Growth rules by name, and one function that reads the name of a shape or of a growth rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from lib.trees import shapes
from lib.trees.grown_shapes import whole_number
from lib.trees.growth.candidates import Growth
from lib.trees.growth.rules import Auto, Beam, BestFirst, Costs, Eagle2, Fork, OptTree, Smart
from lib.trees.tree import Tree

DEPTH = 16  # the most levels, if a name does not give them
AUTO = "auto"  # in place of a budget
AUTOMATIC = ("dyspec", "eagle2", "opttree", "ddtree", "pctree")  # rules that may have it
CHAIN, TREE, GROWN = "chain", "static tree", "grown tree"  # what `form_of` gives


@dataclass(frozen=True)
class GrowthFamily:
    """A family of rules: `build(budget, *numbers)`, the count of numbers that its name takes, an example, a summary.

    costs: whether `build` also takes costs=.
    """

    build: Callable[..., Growth]
    takes: range
    example: str
    about: str
    costs: bool = False


def _best_first(family: str, about: str) -> GrowthFamily:
    return GrowthFamily(lambda budget, depth=DEPTH: BestFirst(_depth(depth, budget), budget, family), range(2),
                        f"{family}@32", about)


RULES: dict[str, GrowthFamily] = {
    "eagle2": GrowthFamily(
        lambda budget, width, depth: Eagle2(whole_number(width, "width"), _depth(depth, budget), budget),
        range(2, 3), "eagle2:4,6@32", "best WIDTH of each of DEPTH levels expanded, all reranked (EAGLE-2)"),
    "opttree": GrowthFamily(
        lambda budget, most=None, depth=DEPTH, delta=0.0: OptTree(
            budget if most is None else whole_number(most, "width"), _depth(depth, budget), budget, delta),
        range(4), "opttree@32 or opttree:32,8,0.1@64",
        "best WIDTH of each level expanded until a level gains at most DELTA (OPT-Tree)"),
    "dyspec": _best_first("dyspec", "largest path products, best first (DySpec)"),
    "beam": GrowthFamily(lambda budget, width: Beam(whole_number(width, "width"), budget), range(1, 2), "beam:4@32",
                         "best WIDTH paths of each level"),
    "fork": GrowthFamily(
        lambda budget, branches, certain, depth=DEPTH: Fork(whole_number(branches, "branches"), certain,
                                                            _depth(depth, budget), budget),
        range(2, 4), "fork:2,0.7@8", "a chain that has BRANCHES from the first token below CERTAIN on"),
    "smart": GrowthFamily(lambda budget, depth=DEPTH, *, costs: Smart(_depth(depth, budget), budget, costs), range(2),
                          "smart@32", "grown while it makes a round faster (SMART)", costs=True),
    "ddtree": _best_first("ddtree", "largest products of one distribution per depth (DDTree)"),
    "pctree": _best_first("pctree", "largest path products of a head whose one pass serves every parent (PCTree)"),
}


def parse(rule: str | Growth, *, costs: Costs | None = None) -> Growth:
    """The growth rule of a name, "FAMILY:NUMBERS@BUDGET"; a rule passes through.

    "eagle2:WIDTH,DEPTH@N", "opttree:WIDTH,DEPTH,DELTA@N", "dyspec:DEPTH@N", "beam:WIDTH@N",
    "fork:BRANCHES,CERTAIN,DEPTH@N", "smart:DEPTH@N" (with costs), "ddtree:DEPTH@N", "pctree:DEPTH@N". Numbers that
    the names of opttree, dyspec, ddtree, pctree, fork and smart omit are WIDTH = N, DEPTH = 16 and DELTA = 0. "@auto"
    in place of a budget chooses one in each round, up to what the costs cover (see `Auto`).
    ValueError names the part of the name that is wrong.
    """
    if not isinstance(rule, str):
        return rule
    name, _, budget = rule.partition("@")
    family, colon, text = name.strip().partition(":")
    if family not in RULES:
        examples = ", ".join(repr(entry.example) for entry in RULES.values())
        raise ValueError(f"growth rule {name!r} is unknown: write one of {examples}")
    entry = RULES[family]
    try:
        numbers = [float(number) for number in text.split(",")] if colon else []
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"growth rule {name!r} has numbers {text!r}: write {entry.example!r}")
    automatic = budget == AUTO and family in AUTOMATIC
    if not automatic and (len(numbers) not in entry.takes or not budget.isdecimal()):
        raise ValueError(f"growth rule {rule!r} is not complete: write it as in {entry.example!r} ({entry.about})")
    if (automatic or entry.costs) and costs is None:
        raise ValueError(f"growth rule {rule!r} needs costs: pass growth.parse(..., costs=), or the rule itself")
    if automatic:
        return Auto(parse(f"{name}@{len(costs.target) - 1}"), costs)
    return entry.build(int(budget), *numbers, **({"costs": costs} if entry.costs else {}))


def at_budget(name: str, budget: int, *, costs: Costs | None = None) -> Growth:
    """A family with its numbers ("eagle2:4,6") at a budget."""
    return parse(f"{name}@{budget}", costs=costs)


def shape_or_growth(wanted: str | Tree | Growth, *, costs: Costs | None = None) -> Tree | Growth:
    """A static shape or a growth rule, by name, with its costs if it needs some; a Tree or a rule passes through."""
    if not isinstance(wanted, str):
        if not hasattr(wanted, "budget"):
            raise ValueError(f"shape is {wanted!r}; give a name such as 'kary:2@16', a Tree, or a growth rule")
        return wanted
    family = wanted.partition("@")[0].partition(":")[0].strip()
    if family in RULES:
        return parse(wanted, costs=costs)
    static = list(dict.fromkeys(name.partition(":")[0] for name in shapes.FAMILIES))
    if family not in static:
        raise ValueError(f"{wanted!r} is unknown: it is neither a shape ({', '.join(static)}) nor a growth rule "
                         f"({', '.join(RULES)}); write 'kary:2@16' or 'eagle2:4,6@32'")
    return _static(wanted)


def form_of(name: str) -> str:
    """CHAIN, TREE or GROWN, by the name of a shape or of a growth rule."""
    family = name.partition("@")[0].partition(":")[0]
    return GROWN if family in RULES else CHAIN if family == "chain" else TREE


@lru_cache(maxsize=256)
def _static(name: str) -> Tree:
    """One object per name, so that values cached for a tree are found without comparing trees."""
    return shapes.parse(name)


def _depth(number: float, budget: int) -> int:
    return min(whole_number(number, "depth"), budget)
