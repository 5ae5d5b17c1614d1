"""The growth study's rows against live decoding and against rank replay; its comparison, table and figures."""

import numpy as np
import pandas as pd
import pytest

from lib import replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import stats, theme
from lib.lab import tables as schemas
from lib.replay import acceptance
from lib.replay.simulated import Recorded
from lib.studies.acceptance import live, measure, recording, shape_findings, summary
from lib.tests import small_heads, small_models
from lib.trees import growth, shapes

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(0, (70, 80, 66, 90, 75, 68))
ASKED = recording.split_prompts(list("abcdef"), ["k"] * 3 + ["l"] * 3, PROMPTS, choose=1, judge=2)
COUNTS = ["prompt", "stretch", "rounds", "drafted", "accepted"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return recording.record("t", TARGET, {"d": DRAFTER}, ASKED, temperatures=[0.0, 1.0], tokens=18, starts=2, horizon=6,
                        eos_token_id=None, seed=0, folder=tmp_path_factory.mktemp("traces"), report=lambda _: None)


def of_protocol(traces, protocol, temperature=0.0):
    return next(one for one in traces if (one.about["protocol"], one.about["temperature"]) == (protocol, temperature))


def in_order(frame, names):
    return frame.sort_values(["prompt", "stretch"]).reset_index(drop=True)[names]


def test_rows_of_continuations_are_those_of_live_decoding(traces):
    recorded = of_protocol(traces, acceptance.CONTINUATION)
    rule = growth.parse("dyspec@10")
    done = live.decode(TARGET, LanguageModelDrafter(DRAFTER), ASKED.ids, shape=rule, max_new_tokens=19)
    found = measure.evaluate_grown(Recorded(recorded, ASKED.ids), "d", DRAFTER, [("dyspec", 10, rule)])
    lived = live.tally(done, ASKED.names, ASKED.kinds)
    pd.testing.assert_frame_equal(in_order(found, COUNTS), in_order(lived, COUNTS), check_dtype=False)
    assert set(found["family"]) == {"dyspec"} and set(found["temperature"]) == {0.0} and found["accepted"].sum() > 0


def test_what_heads_grow_has_rows_too(traces):
    recorded = of_protocol(traces, acceptance.CONTINUATION)
    made, rule = small_heads.DRAFTERS["eagle"](TARGET, small_heads.head("eagle", TARGET)), growth.parse("eagle2:3,3@8")
    found = measure.evaluate_grown(Recorded(recorded, ASKED.ids), "eagle", made, [("eagle2:3,3", 8, rule)])
    lived = live.tally(live.decode(TARGET, made, ASKED.ids, shape=rule, max_new_tokens=19), ASKED.names, ASKED.kinds)
    pd.testing.assert_frame_equal(in_order(found, COUNTS), in_order(lived, COUNTS), check_dtype=False)


@pytest.mark.parametrize("protocol", [acceptance.CONTINUATION, acceptance.REAL_TEXT])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_static_tree_grown_again_has_the_rows_that_its_ranks_give(traces, protocol, temperature):
    recorded = of_protocol(traces, protocol, temperature)
    prompts = recording.real_text_starts(ASKED, 2) if protocol == acceptance.REAL_TEXT else ASKED
    wanted = [("kary:2", 6, shapes.parse("kary:2@6"))]
    grown = measure.evaluate_grown(Recorded(recorded, prompts.ids), "d", DRAFTER, wanted)
    static = measure.evaluate_static(recorded, "d", wanted)
    names = [*COUNTS, "kind", "calls", "depth", "family", "budget", "drafter", "target", "protocol", "temperature"]
    pd.testing.assert_frame_equal(in_order(grown, names), in_order(static, names), check_dtype=False)


def test_the_comparison_is_a_table_and_a_figure(traces):
    rows = pd.concat([measure.compare_grown(
        recorded, "d", {"d": DRAFTER}, prompts, families=["chain", "optimal"], rules=["dyspec", "eagle2:2,3"],
        budgets=[2, 6])
        for recorded, prompts in [(of_protocol(traces, acceptance.CONTINUATION), ASKED),
                                  (of_protocol(traces, acceptance.REAL_TEXT), recording.real_text_starts(ASKED, 2))]])
    schema = schemas.schema_of("growth")
    assert set(schema.columns) == set(rows) and not rows.duplicated(list(schema.key)).any()
    assert set(rows["prompt"]) == set("bcef"), "judged on prompts that no tree was grown from"
    one = rows[(rows["protocol"] == acceptance.REAL_TEXT) & (rows["stretch"] == "before")]
    lengths = stats.summarise(one, ["family", "budget"], "accepted", "rounds", np.random.default_rng(0))
    lead = summary.growth_differences(one, np.random.default_rng(0))
    assert set(lead["family"]) == {"dyspec", "eagle2:2,3"} and len(lead) == 4
    length = lengths.set_index(["family", "budget"])["value"]
    for row in lead.itertuples():
        best = max(length["chain", row.budget], length["optimal", row.budget])
        assert row.value == pytest.approx(length[row.family, row.budget] - best)
    finding = shape_findings.grown_trees(one, np.random.default_rng(0))
    finding.figure.canvas.draw()
    theme.close(finding.figure)
    assert "4 comparisons" in finding.claim and list(finding.table) == [2, 6]


def test_confidence_is_chosen_on_the_choosing_prompts(traces):
    recorded = of_protocol(traces, acceptance.CONTINUATION)
    rows = measure.compare_grown(recorded, "d", {"d": DRAFTER}, ASKED, families=["chain"], rules=["dyspec"], budgets=[5],
                                confidences=[3.0, 1.0, 0.3])
    choosing, judged = recording.halves(recorded)
    halves = [[ids for ids, chooses in zip(ASKED.ids, ASKED.choosing) if chooses == half] for half in (True, False)]
    wanted = [("dyspec", 5, growth.parse("dyspec@5"))]
    tried = {each: measure.evaluate_grown(Recorded(choosing, halves[0]), "d", DRAFTER, wanted, confidence=each)
             for each in (3.0, 1.0, 0.3)}
    length = {each: own[own.stretch == "before"][["accepted", "rounds"]].sum() for each, own in tried.items()}
    best = max(length, key=lambda each: length[each]["accepted"] / length[each]["rounds"])
    grown = rows[rows["family"] == "dyspec"]
    assert set(grown["confidence"]) == {best} and rows.loc[rows["family"] == "chain", "confidence"].isna().all()
    again = measure.evaluate_grown(Recorded(judged, halves[1]), "d", DRAFTER, wanted, confidence=best)
    pd.testing.assert_frame_equal(in_order(grown, COUNTS), in_order(again, COUNTS))


def test_padding_of_the_vocabulary_is_never_drafted():
    wide = small_models.llama(3)
    recorded = replay.record(TARGET, {"d": DRAFTER}, ASKED.ids[:1], names=["a"], kinds=["k"], max_new_tokens=3,
                            about={"target": "t", "protocol": acceptance.CONTINUATION})
    rule = growth.parse("dyspec:1@24")
    found = measure.evaluate_grown(Recorded(recorded, ASKED.ids[:1]), "d", wide, [("dyspec", 24, rule)], vocabulary=5)
    assert found["drafted"].sum() == 5 * found["rounds"].sum()
