"""Explorers without a browser: a control is moved, and what is shown must follow."""

from types import SimpleNamespace

import pytest

from lib.drafters.language_model import LanguageModelDrafter
from lib.explorers.rounds_explorer import MOST_NODES, TYPED, RoundsExplorer, drafters_of
from lib.explorers.shape_explorer import ShapeExplorer
from lib.tests import small_models
from lib.tests.letters import Letters
from lib.trees import shapes

ACCEPTANCE = [0.6, 0.2, 0.1]


@pytest.fixture
def explorer():
    return ShapeExplorer({"greedy": ACCEPTANCE, "sampled": [0.4, 0.3, 0.2]}, first="kary:2", budget=6, max_budget=32,
                         prefix=10)


@pytest.mark.parametrize(("control", "value"), [
    ("first", "chain"), ("first", "expansion:2,1@4"), ("second", "star"), ("budget", 9), ("prefix", 99), ("node", "4"),
    ("decoding", "sampled")])
def test_every_control_changes_what_is_shown(explorer, control, value):
    before = explorer.shown.value
    getattr(explorer, control).value = value
    assert explorer.shown.value != before and explorer.shown.value.count("<svg") == len(explorer.trees)
    assert explorer.message.value == ""


def test_trees_and_numbers_follow_the_controls(explorer):
    assert explorer.trees == {"kary:2": shapes.kary(2, 2)} and "6 nodes, depth 2, 4 leaves" in explorer.shown.value
    explorer.first.value, explorer.budget.value = "optimal", 9
    assert explorer.trees == {"optimal": shapes.optimal(ACCEPTANCE, 9)}
    tree = explorer.trees["optimal"]
    assert f"{shapes.expected_accepted(tree, ACCEPTANCE):.2f} accepted" in explorer.shown.value
    explorer.node.value = "3"
    seen = ", ".join(map(str, tree.path(3)))
    assert f"sees the prefix and nodes {seen}" in explorer.shown.value
    assert f"= {10 + tree.depth[3]}," in explorer.shown.value
    explorer.prefix.value = 0
    assert f"sees nodes {seen}" in explorer.shown.value  # where there is no prefix none is seen


def test_two_shapes_stand_side_by_side_and_a_name_may_have_its_own_budget(explorer):
    explorer.second.value = "chain@3"
    assert {name: tree.budget for name, tree in explorer.trees.items()} == {"kary:2": 6, "chain@3": 3}
    explorer.node.value = "5"  # which the chain does not have
    assert explorer.message.value == "" and explorer.shown.value.count("node 5: reached") == 1
    explorer.second.value = "none"
    assert list(explorer.trees) == ["kary:2"]


@pytest.mark.parametrize(("control", "value", "says"), [
    ("first", "bush", "unknown"), ("first", " ", "shape is empty"), ("prefix", -1, "prefix is -1: give 0 to"),
    ("node", "7", "mark node is 7: give one of 0 to 6"), ("node", "root", "mark node is &#x27;root&#x27;")])
def test_a_wrong_choice_is_named_and_the_picture_stays(explorer, control, value, says):
    before = explorer.shown.value
    getattr(explorer, control).value = value
    assert says in explorer.message.value and explorer.shown.value == before


@pytest.fixture(scope="module")
def pairs():
    target = small_models.llama(0)
    names = ("near", 0.1), ("far", 2.0)
    return [SimpleNamespace(name=f"t/{name}", target_name="t", target=target, tokenizer=Letters(), eos_token_ids=(),
                            draft_model=small_models.related(target, 1, noise))
            for name, noise in names]


def asked_for(*kinds):
    """As many prompts as kinds."""
    names = tuple(f"p{place}" for place in range(len(kinds)))
    return SimpleNamespace(names=names, kinds=kinds, ids=tuple(small_models.prompts(5, (6, 9, 7)[: len(kinds)])))


@pytest.fixture
def rounds(pairs):
    asked = asked_for("story", "story", "code")
    return RoundsExplorer(pairs, asked, shape="kary:2@6", new_tokens=12, acceptance_by_rank=ACCEPTANCE)


def test_rounds_are_stepped_through_by_buttons_and_slider(rounds):
    last, pictures = rounds.round.max, []
    assert last == len(rounds.steps) > 2
    assert (rounds.round.value, rounds.back.disabled, rounds.forward.disabled) == (1, True, False)
    while not rounds.forward.disabled:
        pictures.append(rounds.picture.value)
        rounds.forward.click()
    assert rounds.step is rounds.steps[-1] and len(pictures) == last - 1 and len(set(pictures)) == last - 1
    rounds.forward.click()
    assert rounds.round.value == last
    rounds.back.click()
    assert rounds.step is rounds.steps[-2] and f"Round {last - 1} of {last}" in rounds.numbers.value
    rounds.round.value = 1
    assert rounds.picture.value == pictures[0]


@pytest.mark.parametrize(("control", "value"), [
    ("pair", "t/far"), ("kind", "code"), ("prompt", 1), ("shape", "chain:3"), ("shape", "optimal@5"),
    ("drafter", "lookup"), ("temperature", 1.0), ("new_tokens", 5)])
def test_every_control_decodes_anew_and_shows_the_first_round(rounds, control, value):
    rounds.forward.click()
    before = rounds.steps
    getattr(rounds, control).value = value
    assert rounds.steps is not before and rounds.steps != before
    assert (rounds.round.value, rounds.round.max, rounds.message.value) == (1, len(rounds.steps), "")
    assert "Round 1 of" in rounds.numbers.value and rounds.text.value.startswith("<div")


def test_a_prompt_can_be_typed(rounds):
    rounds.kind.value = TYPED
    assert "Type a prompt" in rounds.message.value and rounds.prompt.layout.display == "none"
    rounds.typed.value = "abcabc"
    assert rounds.message.value == "" and rounds.step.text[0][0] == "abcabc"
    rounds.typed.value = "  "
    assert "the prompt is empty" in rounds.message.value
    rounds.kind.value = "story"
    assert rounds.message.value == "" and rounds.typed.layout.display == "none"
    assert rounds.step.text[0][0] != "abcabc"


@pytest.mark.parametrize(("control", "value", "says"), [
    ("shape", "kary:two@4", "give whole numbers"), ("shape", "bush@4", "unknown"), ("shape", "", "unknown"),
    ("shape", "kary:4,4", f"at most {MOST_NODES}"), ("shape", "chain:128", None),
    ("new_tokens", 600, "new tokens"), ("new_tokens", 1, "new tokens is 1: give 2 to 1024"),
    ("temperature", -1.0, "temperature is -1: give 0 to 5"), ("drafter", "oracle", "needs continuations"),
    ("drafter", "crystal", "choose one of")])
def test_what_is_wrong_is_said_and_what_was_shown_stays(rounds, control, value, says):
    steps, picture = rounds.steps, rounds.picture.value
    getattr(rounds, control).value = value
    if says is None:
        assert rounds.message.value == "" and rounds.step.tree == shapes.chain(64)  # as deep as drafts may be
        return
    assert says in rounds.message.value and "last decoding that worked" in rounds.message.value
    assert rounds.steps is steps and rounds.picture.value == picture
    good = {"shape": "chain:2", "new_tokens": 9, "temperature": 0.5, "drafter": "sam"}
    getattr(rounds, control).value = good[control]
    assert rounds.message.value == "" and rounds.steps is not steps


def test_rules_follow_the_temperature_and_take_the_children_that_they_were_made_for(rounds):
    assert rounds.rule.options == ("greedy",)
    rounds.temperature.value = 1.0
    assert rounds.rule.value == "naive" and "typical" not in rounds.rule.options
    for rule in rounds.rule.options:
        rounds.rule.value = rule
        assert (rounds.message.value == "") == (rule != "block"), rounds.message.value  # which is for chains alone
    rounds.drafter.value, rounds.rule.value = "lookup", "multi_step"
    assert "does not sample: take rule" in rounds.message.value
    rounds.temperature.value = 0.0
    assert rounds.rule.value == "greedy" and rounds.message.value == ""


def test_the_drafters_offered_are_those_of_the_pair(rounds, pairs):
    assert {"model", "lookup", "sam", "recycling", "early_exit", "combined"} <= set(rounds.drafter.options)
    alone = SimpleNamespace(**vars(pairs[0]) | {"draft_model": None, "target_name": "base"})
    offered = drafters_of(alone)
    assert "model" not in offered and {"ngrams", "lookup"} <= set(offered)
    explorer = RoundsExplorer([alone], rounds.prompts, shape="chain:3", new_tokens=6)
    assert explorer.drafter.value == "lookup" and explorer.message.value == ""
    assert RoundsExplorer([alone], rounds.prompts, shape="chain:3", drafter="sam").drafter.value == "sam"
    assert RoundsExplorer([alone], rounds.prompts, shape="chain:3", drafter="small").drafter.value == "lookup"


def test_the_speed_stands_beside_that_of_plain_decoding_which_is_measured_once(rounds):
    assert "tokens per second" in rounds.numbers.value and "plainly)" in rounds.numbers.value
    before = dict(rounds.plain)
    rounds.shape.value = "chain:4"
    assert len(before) == 1 and rounds.plain == before


def test_a_growth_rule_draws_another_tree_every_round(rounds):
    rounds.shape.value = "dyspec@6"
    assert rounds.message.value == "" and all(step.tree.budget == 6 for step in rounds.steps)
    assert len({tuple(step.tree.parents) for step in rounds.steps}) > 1
    rounds.shape.value = "eagle2@6"
    assert "not complete: write it as in" in rounds.message.value


def test_an_error_of_any_kind_is_a_message_and_no_traceback(rounds, monkeypatch):
    def fail(self, prompts):
        raise RuntimeError("out of <memory>")

    monkeypatch.setattr(LanguageModelDrafter, "start", fail)
    rounds.shape.value = "chain:4"
    assert "RuntimeError: out of &lt;memory&gt;" in rounds.message.value


def test_an_explorer_that_cannot_begin_says_why_and_recovers(pairs):
    explorer = RoundsExplorer(pairs, asked_for("story"), shape="optimal@8", new_tokens=6)
    assert "grown from measurements" in explorer.message.value and explorer.shown.layout.display == "none"
    explorer.forward.click()
    explorer.shape.value = "chain:2"
    assert explorer.shown.layout.display is None and explorer.message.value == ""


def test_a_text_that_ends_at_once_has_no_round_to_show(pairs, rounds):
    first = Letters.ids(rounds.steps[0].text[1][0])[0]
    ending = SimpleNamespace(**vars(pairs[0]) | {"eos_token_ids": (first,)})
    assert "before any round" in RoundsExplorer([ending], rounds.prompts).message.value
