"""The weblogs' tables beside what was measured: each number by hand from the rounds and the costs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.cost.round_cost import RULER, CostTable, Curve, RoundCost
from lib.lab.tables import write
from lib.measure import sources
from lib.tests.cost import test_cost
from lib.tests.measure.test_advice_tables import told
from lib.trees import shapes

KINDS = {"coding": "abcd", "translation": "efgh"}
LOOKING = RoundCost(2.0, 0.0, Curve.through([1], [0.0]), Curve(np.array([1.0, 16.0]), np.array([2.0, 5.0])))
MODEL = replace(LOOKING, once=0.5, level=Curve.through([1], [0.25]))
SIZES = {"t": 1000, "u": 500, "d": 50}


def rounds(target="t"):
    """Ten rounds of each prompt; a drafter accepts more of a longer chain, look-up more where code is written."""
    return pd.DataFrame([
        dict(target=target, drafter=drafter, temperature=0.0, family=family, budget=budget,
             depth=budget, prompt=f"{kind}-{name}", kind=kind, stretch="before", rounds=10,
             drafted=10 * budget if drafter == "d" else 5 * budget,
             accepted=3 + budget + 6 * (drafter == "lookup" and kind == "coding") + 2 * (family == "star"))
        for drafter in ("lookup", "d") for family, budget in [("chain", 1), ("chain", 4), ("star", 8)]
        for kind, names in KINDS.items() for name in names])


def measured(prices):
    """With chains of the weblog's lengths; that of 8 tokens stands in both tables, as it may."""
    rows = pd.concat([rounds(), rounds("u")])
    chains = pd.concat([rows[(rows["family"] == "chain") & (rows["budget"] == 4)].assign(
        budget=length, drafted=10 * length) for length in (3, 5, 8, 12)])
    again = chains[chains["budget"] == 8].assign(family="chain", depth=8)
    looping, sampled = again.assign(stretch="loop", accepted=0), again.assign(temperature=1.0, accepted=0)
    seen = sources.greedy_rounds(pd.concat([rows, again, looping, sampled]), chains.drop(columns=["family", "depth"]))
    return sources.Measured(seen, prices, "t", "float32", "a machine", SIZES)


@pytest.fixture(scope="module")
def rows():
    return measured({"lookup": LOOKING, "d": MODEL}).grid(np.random.default_rng(0))


def test_chains_of_the_weblogs_lengths_stand_beside_its_table(rows, tmp_path):
    """Calls saved are 1 - rounds / tokens; a chain of 3 costs its draft and its check, or a plain round without one."""
    write(tmp_path, "source_grid", rows, "mark")
    own = rows[(rows["grid"] == sources.LENGTH) & (rows["drafter"] != "")].set_index(["drafter", "row"])
    assert len(own) == 2 * 4 and set(own["shape"]) == {f"chain:{length}" for length in sources.CLAIMS["length"]}
    row = own.loc[("d", "chain:3")]
    assert (row["rate"], row["tokens"], row["n_prompts"]) == (pytest.approx(7 / 30), pytest.approx(1.7), 8)
    assert row["saved"] == pytest.approx(1 - 10 / 17) and row["claimed_saved"] == 0.45
    assert row["speedup"] == pytest.approx(1.7 * 2 / (MODEL.draft(shapes.chain(3)) + MODEL.check(3)))
    looked = own.loc[("lookup", "chain:12")]
    assert looked["speedup"] == pytest.approx(looked["tokens"] * 2 / LOOKING.check(12))


def test_pairs_are_those_of_a_target_and_a_model(rows):
    own = rows[rows["grid"] == sources.PAIR].set_index("row")
    assert own["memory"].dropna().to_dict() == {"t/d": 0.05, "u/d": 0.1} and np.isnan(own.loc["u/d", "speedup"])
    assert own["claimed_memory"].dropna().to_dict() == {"7B/160M": 0.12, "70B/1B": 0.18}
    assert own["shape"].to_dict() == {"t/d": "chain:5", "u/d": "chain:5", "7B/160M": "", "70B/1B": ""}


def test_by_task_each_drafter_has_the_shape_that_is_fastest_on_the_other_prompts(rows):
    own = rows[rows["grid"] == sources.TASK].set_index(["drafter", "row"])
    assert own["claimed"].to_dict()[("d", "coding")] == "EAGLE 2-3, n-grams 1.5-2" and (own["n_prompts"] == 2).all()
    known = measured({"lookup": LOOKING, "d": MODEL})
    choosing = {f"{kind}-{name}" for kind, names in KINDS.items() for name in names[::2]}
    for drafter, shape in own["shape"].groupby(level=0).first().items():
        tried = known.of_target[(known.of_target["drafter"] == drafter) & known.of_target["prompt"].isin(choosing)]
        speeds = pd.DataFrame(known.estimates(tried, [], np.random.default_rng(0)))
        assert shape == speeds.loc[speeds["speedup"].idxmax(), "shape"]
    untimed = list(measured({}).by_task(np.random.default_rng(0)))
    assert {(row["shape"], row["machine"]) for row in untimed} == {("star@8", "")}, "most tokens per round"
    assert all(np.isnan(row["speedup"]) for row in measured({}).by_length(np.random.default_rng(0)))


def test_a_scenario_that_is_not_recommended_stands_beside_what_it_gains_here(rows):
    own = rows[rows["grid"] == sources.SCENARIO].set_index("row")
    assert own.loc["translation in real time", "claimed"] == "not recommended"
    assert own.loc["translation in real time", "speedup"] > 0 and set(own["machine"]) == {"a machine"}
    assert set(own.index) == {"code completion", "translation in real time"}, "no other kinds of text were measured"
    assert own.loc["code completion", "drafter"] == "lookup"
    assert not list(measured({}).by_scenario(np.random.default_rng(0))), "nothing was timed"


def test_the_cost_of_a_drafter_is_the_rulers_check_and_its_own_drafting():
    """A draft model stands under its name too; a drafter whose drafting was not timed has no cost unless it is free."""
    table = test_cost.table()
    ruled = pd.concat([table.assign(drafter=RULER, verify_ms=7.0), table.assign(drafter="model")])
    candidates = pd.DataFrame(dict(drafter=["lookup", "model", "eagle3"], level=[0.0, 0.1, 0.1]))
    made = replace(told(), draft_models=["d"])
    prices = sources.prices_of(CostTable(ruled), candidates, made)
    assert set(prices) == {RULER, "lookup", "model", "d"} and prices["d"] is prices["model"]
    assert prices["lookup"].level(1) == 0 and prices["lookup"].check(3) == prices["model"].check(3)
    assert prices["model"].level(1) == CostTable(ruled).at("t", "model").level(1) > 0
    assert sources.prices_of(CostTable(ruled.assign(batch=2)), candidates, made) == {}
