"""The cost explorer without a browser: measured costs give the table's speeds, typed ones those that follow."""

import matplotlib
import pytest

from lib import cost
from lib.explorers.cost_explorer import CostExplorer, curve_of
from lib.tests.cost.test_recommendation import found  # noqa: F401

matplotlib.use("agg")


@pytest.fixture
def explorer(found):  # noqa: F811
    return CostExplorer(found.candidates, cost.CostTable(found.costs), "t")


def test_with_the_measured_cost_the_speeds_are_those_of_the_table(explorer):
    rows = explorer.speeds()
    assert len(rows) and rows["speed"].to_numpy() == pytest.approx(rows["speedup"].to_numpy(), rel=0.02)
    explorer.batch.value = 2
    rows = explorer.speeds()
    assert set(rows["batch"]) == {2} and rows["speed"].to_numpy() == pytest.approx(rows["speedup"].to_numpy(), rel=0.02)


def test_a_dearer_check_of_many_nodes_makes_smaller_trees_faster(explorer):
    before = explorer.speeds().set_index(["drafter", "shape"])
    explorer.check.value = "0:1000, 1:1010, 4:9000"
    after = explorer.speeds().set_index(["drafter", "shape"])
    assert explorer.message.value == ""
    large = (before["budget"] == 4) & (before.index.get_level_values("drafter") == "model")  # look-up often drafts less
    assert large.any() and (after.loc[large, "speed"] < before.loc[large, "speed"]).all()
    assert after.loc[after["speed"].idxmax(), "budget"] < before.loc[before["speed"].idxmax(), "budget"]
    explorer.check.value = "0:1, 4:1000"
    assert "leave speculation off" in explorer.numbers.value


@pytest.mark.parametrize(("control", "value"), [("drafter", "model"), ("nodes", 1), ("check", "0:1000, 4:1500")])
def test_every_control_changes_the_picture(explorer, control, value):
    explorer.drafter.value = "lookup"
    before, told = explorer.picture.value, explorer.numbers.value
    getattr(explorer, control).value = value
    assert explorer.picture.value != before and explorer.numbers.value != told and not explorer.message.value


@pytest.mark.parametrize(("text", "says"), [
    ("0:10, many", "'many': give NODES:MILLISECONDS"), ("1:10, 4:12", "the time of 0 nodes"),
    ("0:10", "at least one other"), ("0:0, 4:12", "times above 0"), ("", "the time of 0 nodes")])
def test_a_cost_that_cannot_be_read_is_named_and_the_picture_stays(explorer, text, says):
    before = explorer.picture.value
    explorer.check.value = text
    assert says in explorer.message.value.replace("&#x27;", "'") and explorer.picture.value == before
    with pytest.raises(ValueError, match=says):
        curve_of(text)


def test_the_explorer_leaves_no_open_figures(explorer):
    matplotlib.pyplot.close("all")
    explorer.nodes.value = 2
    assert not matplotlib.pyplot.get_fignums()
