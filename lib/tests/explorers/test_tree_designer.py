"""The tree designer without a browser: each change is what replay says of the new tree, hints are the best single
changes, and what is copied makes the same tree.
"""

import pytest

from lib.explorers.tree_designer import TreeDesigner
from lib.replay import acceptance
from lib.replay.atlas import Atlas
from lib.replay.rank_paths import rank_paths
from lib.study.costs import Costs, curve_through
from lib.tests.replay.test_atlas import recorded
from lib.trees.tree import Tree

COSTS = {"one": Costs(curve_through([1], [0.01]), {1: curve_through([0, 64], [0.01, 0.02])}, {}),
         "flat": Costs(curve_through([1], [0.01]), {1: curve_through([0], [0.01])}, {})}


def made(**settings) -> TreeDesigner:
    texts = recorded()
    texts.trace.labels["choosing"] = sorted(set(texts.trace.prompts))[::2]
    return TreeDesigner(Atlas(texts, {}), name="kary:2@6", **settings)


@pytest.fixture
def designer():
    return made(costs=COSTS, level=2.0)


def accepted(tree, part) -> int:
    """Accepted tokens over all starts."""
    trie = rank_paths(part, "tiny")
    return sum(trie.count(node) for node in trie.nodes(tree)[1:] if node >= 0)


def test_nodes_are_added_pruned_and_come_back(designer):
    first = designer.tree
    designer.add(0)
    assert designer.tree.choices() == [*[path for path in first.choices() if len(path) == 1], (2,),
                                       *[path for path in first.choices() if len(path) > 1]]
    designer.prune(1)  # with its children; the later siblings move up
    assert sorted(designer.tree.choices()) == [(0,), (0, 0), (0, 1), (1,)]
    for _ in range(2):
        designer.undo()
    assert designer.tree == first
    designer.redo()
    assert designer.tree.budget == 7
    designer.add(0)
    designer.redo()
    assert designer.tree.budget == 8, "a new change ends what can be made again"
    with pytest.raises(ValueError, match="the root is the last committed token"):
        designer.prune(0)
    exec(designer.canvas.code, names := {"Tree": Tree})  # what is copied
    assert names["tree"] == designer.tree == Tree.from_choices([tuple(path) for path in names["choices"]])


def test_hints_are_the_best_single_changes(designer):
    for _ in range(4):
        before, ((node, gain), (leaf, loss)) = accepted(designer.tree, designer.choosing), designer.hints()
        starts = rank_paths(designer.choosing, "tiny").count(0)
        others = []
        for other in range(designer.tree.size):
            designer.add(other)
            others.append(accepted(designer.tree, designer.choosing) - before)
            designer.undo()
        assert others[node] == max(others) and gain == pytest.approx(max(others) / starts)
        losses = {}
        for other in designer.tree.leaves:
            kept = [path for at, path in enumerate(designer.tree.choices(), 1) if at != other]
            losses[int(other)] = before - accepted(Tree.from_choices(kept), designer.choosing)
        assert losses[leaf] == min(losses.values()) and loss == pytest.approx(losses[leaf] / starts)
        designer.commands["add hint"](0)
        assert accepted(designer.tree, designer.choosing) == before + others[node]
    designer.budget.value = 9
    designer.commands["grow"](0)
    assert accepted(designer.tree, designer.choosing) >= max(
        accepted(acceptance.tree_of(f"{name}@9", designer.choosing, "tiny"), designer.choosing)
        for name in ("chain", "kary:2", "optimal"))


def test_what_is_shown_is_replayed_on_the_other_prompts(designer):
    rounds = acceptance.rounds_of(designer.judging, designer.tree, "tiny")
    shown = designer.worth(designer.tree)
    assert shown["length"].value == pytest.approx(rounds.accepted.mean())
    assert f"{shown['rate'].value:.1%}" in designer.numbers.value and "Sequoia" in designer.numbers.value
    assert designer.canvas.svg.count('class="node"') == designer.tree.size
    tokens = 1 + shown["length"].value
    assert f">{tokens * 10 / (2 * 2 + 10 + 6 * 10 / 64):.2f}<" in designer.numbers.value
    designer.level.value, designer.machine.value = 0.0, "flat"
    assert f">{tokens:.2f}<" in designer.numbers.value
    without_costs = made()
    assert without_costs.machine.value is None and "–" in without_costs.numbers.value


@pytest.mark.parametrize(("act", "says"), [
    (lambda one: setattr(one.name, "value", "kary:9@x"), "kary:9@x"),
    (lambda one: setattr(one.name, "value", "chain:500"), "500 nodes: give one of 1 to 64"),
    (lambda one: one.canvas._handle_custom_msg({"command": "prune", "node": 0}, []), "cannot be pruned")])
def test_what_is_wrong_is_named_and_the_tree_stays(designer, act, says):
    before = designer.tree
    act(designer)
    assert says in designer.message.value and designer.tree == before
