"""Growth rules by name, and one function that reads the name of a shape or of a growth rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from lib.trees import shapes
from lib.trees.grown_shapes import whole_number
from lib.trees.growth.candidates import Growth
from lib.trees.growth.rules import Auto, Beam, BestFirst, Costs, Eagle2, Fork, OptTree, Smart
from lib.trees.tree import Tree

DEPTH = 16  # the most levels, if a name does not give them
WHOLE = ("width", "most", "max_depth", "branches")  # numbers of a name that are whole, from 1 on
OPTIONAL = ("most", "max_depth", "delta")  # numbers that a name may leave out
AUTO = "auto"  # in place of a budget
AUTOMATIC = ("dyspec", "eagle2", "opttree", "ddtree", "pctree")  # rules that may have it
CHAIN, TREE, GROWN = "chain", "static tree", "grown tree"  # what `form_of` gives


@dataclass(frozen=True)
class GrowthFamily:
    """A family of rules: its class, whose `numbers` stand in a name, an example of its name, and a summary."""

    rule: type[Growth]
    example: str
    about: str


RULES: dict[str, GrowthFamily] = {
    "eagle2": GrowthFamily(Eagle2, "eagle2:4,6@32",
                           "best WIDTH of each of DEPTH levels expanded, all reranked (EAGLE-2)"),
    "opttree": GrowthFamily(OptTree, "opttree@32 or opttree:32,8,0.1@64",
                            "best WIDTH of each level expanded until a level gains at most DELTA (OPT-Tree)"),
    "dyspec": GrowthFamily(BestFirst, "dyspec@32", "largest path products, best first (DySpec)"),
    "beam": GrowthFamily(Beam, "beam:4@32", "best WIDTH paths of each level"),
    "fork": GrowthFamily(Fork, "fork:2,0.7@8", "a chain that has BRANCHES from the first token below CERTAIN on"),
    "smart": GrowthFamily(Smart, "smart@32", "grown while it makes a round faster (SMART)"),
    "ddtree": GrowthFamily(BestFirst, "ddtree@32", "largest products of one distribution per depth (DDTree)"),
    "pctree": GrowthFamily(BestFirst, "pctree@32",
                           "largest path products of a head whose one pass serves every parent (PCTree)"),
}


def parse(rule: str | Growth, *, costs: Costs | None = None) -> Growth:
    """The growth rule of a name, "FAMILY:NUMBERS@BUDGET"; a rule passes through.

    "eagle2:WIDTH,DEPTH@N", "opttree:WIDTH,DEPTH,DELTA@N", "dyspec:DEPTH@N", "beam:WIDTH@N",
    "fork:BRANCHES,CERTAIN,DEPTH@N", "smart:DEPTH@N" (with costs), "ddtree:DEPTH@N", "pctree:DEPTH@N". A DEPTH that a
    name omits is 16, at most N; opttree's WIDTH is N and its DELTA 0. "@auto" in place of a budget chooses one in each
    round, up to what the costs cover (see `Auto`).
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
    if (automatic or entry.rule is Smart) and costs is None:
        raise ValueError(f"growth rule {rule!r} needs costs: pass growth.parse(..., costs=), or the rule itself")
    if automatic:
        return Auto(parse(f"{name}@{len(costs.target) - 1}"), costs)
    names, given = entry.rule.numbers, dict(zip(entry.rule.numbers, numbers))
    if not budget.isdecimal() or len(numbers) > len(names) or {*names} - given.keys() - {*OPTIONAL}:
        raise ValueError(f"growth rule {rule!r} is not complete: write it as in {entry.example!r} ({entry.about})")
    nodes = int(budget)
    fields = {"most": max(1, nodes), "max_depth": DEPTH, "delta": 0.0} | given
    fields = {name: whole_number(fields[name], name) if name in WHOLE else fields[name] for name in names}
    if "max_depth" in fields:
        fields["max_depth"] = min(fields["max_depth"], nodes)
    more = {"family": family} if entry.rule is BestFirst else {"costs": costs} if entry.rule is Smart else {}
    return entry.rule(budget=nodes, **fields, **more)


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
