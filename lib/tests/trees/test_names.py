"""Names of trees: what each stands for, and what a wrong one says."""

import numpy as np
import pytest

from lib.trees import Tree, named, shapes
from lib.trees.growth import BestFirst, Costs, Eagle2
from lib.trees.names import CHAIN, COMPARED, FAMILIES, GROWN, TREE, family_and_nodes, form_of

ACCEPTANCE = [0.6, 0.2, 0.08, 0.05, 0.03, 0.02]
COSTS = Costs((1.0,) * 10, 0.1)


@pytest.mark.parametrize(("name", "tree"), [
    ("chain:5", shapes.chain(5)), ("chain@5", shapes.chain(5)), ("chain:0", Tree([-1])),
    ("chain:3", Tree([-1, 0, 1, 2])), ("star:4", shapes.star(4)), ("star@3", Tree([-1, 0, 0, 0])),
    ("independent:4x8", shapes.independent(4, 8)), ("independent:4@32", shapes.independent(4, 8)),
    ("independent:4@6", Tree([-1, 0, 0, 0, 0, 1, 2])), ("independent:2x3", Tree([-1, 0, 0, 1, 2, 3, 4])),
    ("kary:2,3", shapes.kary(2, 3)), ("kary:2@14", shapes.kary(2, 3)), ("kary:3@12", shapes.kary(3, 2)),
    ("kary:2@4", Tree([-1, 0, 0, 1, 1])), ("kary:2,2", Tree([-1, 0, 0, 1, 1, 2, 2])),
    ("comb:3@6", Tree([-1, 0, 0, 0, 1, 1, 1])), ("expansion:2@5", Tree([-1, 0, 0, 1, 2, 3])),
    (" expansion:2,2,1", Tree([-1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6])),
    ("expansion:2,2,1@14", shapes.expansion([2, 2, 1, 1])),
    ("expansion:1,1,3,1,1,1,1,1", Tree([-1, 0, 1, 2, 2, 2, *range(3, 18)])),
    ("optimal:2@6", shapes.optimal(ACCEPTANCE, 6, max_depth=2)),
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
    assert [family_and_nodes(name) for name in ("chain:3", "chain@3", "kary:2@6", "frequent@4", "independent:4x2")] == [
        ("chain", 3), ("chain", 3), ("kary:2", 6), ("frequent", 4), ("independent:4x2", 8)]
    forms = [form_of(name) for name in ("chain:3", "kary:2@6", "dyspec@4", "paths of a text")]
    assert forms == [CHAIN, TREE, GROWN, TREE]
    assert named("kary:2@6") is named("kary:2@6") and named("dyspec@4") is named("dyspec@4")


@pytest.mark.parametrize(("name", "message"), [
    ("chian:5", "'chian:5' is unknown: the families are chain, "), ("beam:4@8", "is unknown"),
    *((value, "give a name such as 'kary:2@16', a Tree, or a growth rule") for value in (None, 7, [-1, 0, 0])),
    ("chain:y", "'chain:y' cannot be read: write chain:8"),
    *((name, "cannot be read") for name in (
        "kary:@4", "dyspec:inf@4", "opttree:4,4,nan@4", "dyspec:-2@4", "kary:2@x", "dyspec@auto", "sparse", "dyspec:3",
        "eagle2:4,6", "chain", "kary:2", "kary@4", "chain:3@4", "expansion", "eagle2@32", "eagle2:4@8", "dyspec:3,4@8",
        "optimal:1,2@4", "sparse:3@4")),
    *((name, "branching is 0") for name in ("kary:0@4", "comb:0@3", "expansion:2,0,1@9")),
    ("kary:1.5@4", "branching is 1.5"), ("dyspec:2.5@4", "max_depth is 2.5"), ("eagle2:0,3@4", "width is 0"),
    *((name, "more than 65536 draft nodes") for name in (
        "chain@99999", "kary:9,9", "chain:9999999999", "independent:2x9999999999", "kary:2,20000", "kary:1,9999999999",
        "star:9999999999")),
    ("smart@16", "the costs cover 9 draft nodes, the budget is 16"),
])
def test_a_wrong_name_says_how_to_write_it(name, message):
    with pytest.raises(ValueError, match=message):
        named(name, acceptance=ACCEPTANCE, costs=COSTS)


def test_a_tree_grown_from_measurements_needs_them():
    for name, argument in (("optimal@4", "acceptance"), ("sparse@4", "acceptance"), ("smart@8", "costs")):
        with pytest.raises(ValueError, match=f"pass {argument}="):
            named(name)


def test_examples_of_the_table_are_names():
    for family in FAMILIES.values():
        for example in family.example.split(" or "):
            named(example.split()[0].rstrip(","), acceptance=[0.5] * 40, costs=Costs((1.0,) * 70, 0.0))
