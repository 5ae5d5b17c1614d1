"""Names of trees: what each stands for, and what a wrong one says."""

import numpy as np
import pytest

from lib.trees import Tree, named, shapes
from lib.trees.growth import BestFirst, Costs, Eagle2
from lib.trees.names import CHAIN, COMPARED, FAMILIES, GROWN, TREE, form_of

ACCEPTANCE = [0.6, 0.2, 0.08, 0.05, 0.03, 0.02]
COSTS = Costs((1.0,) * 10, 0.1)


@pytest.mark.parametrize(("name", "tree"), [
    ("chain:5", shapes.chain(5)), ("chain@5", shapes.chain(5)), ("chain:0", shapes.chain(0)),
    ("star:4", shapes.star(4)), ("star@4", shapes.star(4)),
    ("independent:4x8", shapes.independent(4, 8)), ("independent:4@32", shapes.independent(4, 8)),
    ("independent:4@6", Tree([-1, 0, 0, 0, 0, 1, 2])), ("kary:2@4", Tree([-1, 0, 0, 1, 1])),
    ("expansion:2@5", Tree([-1, 0, 0, 1, 2, 3])),
    ("kary:2,3", shapes.kary(2, 3)), ("kary:2@14", shapes.kary(2, 3)), ("kary:3@12", shapes.kary(3, 2)),
    ("comb:3,4", shapes.comb(3, 4)), ("comb:3@12", shapes.comb(3, 4)),
    (" expansion:2,2,1", shapes.expansion([2, 2, 1])), ("expansion:2,2,1@10", shapes.expansion([2, 2, 1])),
    ("expansion:2,2,1@14", shapes.expansion([2, 2, 1, 1])), ("optimal:2@6", shapes.optimal(ACCEPTANCE, 6, max_depth=2)),
    ("sparse@6", shapes.sparse(ACCEPTANCE, 6)), (shapes.chain(2), shapes.chain(2)),
    ("eagle2:4,6@32", Eagle2(32, 6, 4)), ("dyspec@8", BestFirst(8, 8)), ("dyspec@32", BestFirst(32)),
    ("ddtree:4@9", BestFirst(9, 4, "ddtree")), ("opttree@32", BestFirst(32, 16, "opttree", 32, 0.0)),
    ("opttree:8,6,0.25@64", BestFirst(64, 6, "opttree", 8, 0.25)),
    ("opttree:4,4,1e-05@8", BestFirst(8, 4, "opttree", 4, 1e-05)),
    ("smart:3@8", BestFirst(8, 3, "smart", costs=COSTS)), (BestFirst(20), BestFirst(20)),
])
def test_names_stand_for_trees_and_growth_rules(name, tree):
    made = named(name, acceptance=ACCEPTANCE, costs=COSTS)
    assert made == tree
    if isinstance(tree, (Eagle2, BestFirst)):
        assert named(made.name, costs=COSTS) == made, "a rule gives its name"


@pytest.mark.parametrize("family", COMPARED)
def test_every_family_has_exactly_its_budget_and_contains_what_is_smaller(family):
    smaller = set()
    for budget in range(65):
        tree = named(f"{family}@{budget}", acceptance=ACCEPTANCE)
        choices = set(tree.choices())
        assert tree.budget == len(choices) == budget
        assert (np.diff(tree.depth) >= 0).all(), "nodes stand level by level"
        if family != "optimal":  # ties between optimal trees may fall differently from one budget to the next
            assert smaller < choices or budget == 0
        smaller = choices


def test_a_name_gives_its_form_and_one_object():
    forms = [form_of(name) for name in ("chain:3", "kary:2@6", "dyspec@4", "paths of a text")]
    assert forms == [CHAIN, TREE, GROWN, TREE]
    assert named("kary:2@6") is named("kary:2@6") and named("dyspec@4") is named("dyspec@4")


@pytest.mark.parametrize(("name", "message"), [
    ("chian:5", "'chian:5' is unknown: the families are chain, "), ("beam:4@8", "is unknown"),
    *((value, "give a name such as 'kary:2@16', a Tree, or a growth rule") for value in (None, 7, [-1, 0, 0])),
    ("chain:y", "has 'y' where a number belongs: write chain:8"), ("kary:@4", "has '' where a number belongs"),
    *((name, "where a number belongs") for name in ("dyspec:inf@4", "opttree:4,4,nan@4", "dyspec:-2@4")),
    ("kary:2@x", "has budget 'x'"), ("dyspec@auto", "has budget 'auto'"),
    *((name, "needs a budget: write '.*@16'") for name in ("sparse", "dyspec:3", "eagle2:4,6")),
    ("optimal@4", "pass acceptance="), ("smart@8", "pass costs="),
    *((name, "branching is 0") for name in ("kary:0@4", "comb:0,3", "expansion:2,0,1@9")),
    ("kary:1.5@4", "branching is 1.5"), ("dyspec:2.5@4", "max_depth is 2.5"), ("eagle2:0,3@4", "width is 0"),
    *((name, "too few or too many numbers: write") for name in (
        "chain", "kary:2", "kary@4", "chain:3@4", "expansion", "eagle2@32", "eagle2:4@8", "dyspec:3,4@8")),
    ("kary:9,9", "has [0-9]+ nodes or more"), ("chain@99999", "99999 nodes"),
    *((name, "at most 65536") for name in ("chain:9999999999", "independent:2x9999999999", "kary:2,20000",
                                           "kary:1,9999999999", "comb:3,9999999999", "star:9999999999")),
])
def test_a_wrong_name_says_how_to_write_it(name, message):
    with pytest.raises(ValueError, match=message):
        named(name)


def test_numbers_of_families_grown_from_measurements_are_counted():
    for name in ("optimal:1,2@4", "sparse:3@4"):
        with pytest.raises(ValueError, match="too few or too many numbers"):
            named(name, acceptance=ACCEPTANCE)
    with pytest.raises(ValueError, match="the costs cover 9 draft nodes, the budget is 16"):
        named("smart@16", costs=COSTS)


def test_examples_of_the_table_are_names():
    for family in FAMILIES.values():
        for example in family.example.partition(",  ")[0].split(" or "):
            example = example.split()[0].rstrip(",")
            named(example, acceptance=[0.5] * 40, costs=Costs((1.0,) * 70, 0.0))
