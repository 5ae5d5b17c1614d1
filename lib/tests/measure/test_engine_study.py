"""The study of serving engines, on an engine whose clock is a formula: what is predicted is then what is measured."""

import numpy as np
import pytest

from lib.engines import registry
from lib.engines.driver import EngineError
from lib.engines.methods import PLAIN
from lib.lab import tables
from lib.lab.chapter import Store
from lib.measure import engines
from lib.tests.engines.stand_in import StandIn

SETTINGS = dict(engine=["stand-in"], target="base", drafters=["lookup", "tiny-base"], log="", prompts="",
                choose_prompts=1, judge_prompts=1, new_tokens=12, batches=[1, 2], lengths=[1, 2, 4],
                threads=1, seed=0, device="cpu")


@pytest.fixture
def engine(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(registry, "engine", lambda name: made)
    return made


def test_prediction_by_replay_and_costs_is_what_the_engine_measures_and_counts(engine, tmp_path):
    engines.measure(Store(tmp_path, "x"), **SETTINGS)
    ways, runs = (tables.read(tmp_path, name) for name in ("engine_ways", "engine_runs"))
    timed = ways[ways["calls"] > 0]
    assert set(timed["batch"]) == {1, 2} and {"ngram", "draft_model"} == set(timed.loc[timed["batch"] == 1, "method"])
    alone = runs[(runs["batch"] == 1) & (runs["way"] != PLAIN)]
    assert alone["drafts"].sum() > 0
    for counted in ("drafts", "drafted", "accepted"):
        assert (runs.loc[runs["way"] != PLAIN, counted] == runs.loc[runs["way"] != PLAIN, f"replay_{counted}"]).all()
    assert (runs["apart"] == "").all()
    costs = tables.read(tmp_path, "engine_costs").set_index(["batch", "method", "nodes"])["ms"]
    assert costs[1, "plain", 0] == pytest.approx(1100) and costs[2, "forced", 4] == pytest.approx(1700)
    assert costs[1, "draft_model", 4] == pytest.approx(800) and "ngram" not in costs.index.levels[1]
    by_way = timed.set_index(["batch", "way"])
    for way in timed.loc[timed["batch"] == 1, "way"]:
        own = alone[alone["way"] == way]
        plain = runs[(runs["way"] == PLAIN) & (runs["batch"] == 1) & (runs["turn"] == own["turn"].iloc[0])]
        times = [(rows["seconds"] - rows["prefill"]).to_numpy() for rows in (plain.sort_values("call"),
                                                                             own.sort_values("call"))]
        speed = np.exp(np.log(times[0] / times[1]).mean())
        assert by_way.loc[(1, way), "replayed"] == pytest.approx(speed)
    assert (ways.groupby("batch")["recommended"].sum() <= 1).all()
    advice = {one.batch: one for one in engines.advised(ways)}
    assert set(advice) == {1, 2} and advice[1].predicted >= 0.98 * ways.loc[ways["batch"] == 1, "predicted"].max()


def test_an_engine_that_dies_leaves_its_rows_and_the_same_call_measures_the_rest(engine, tmp_path):
    engine.calls = 30
    with pytest.raises(EngineError, match="status -9"):
        engines.measure(Store(tmp_path, "x"), **SETTINGS)
    texts = tables.read(tmp_path, "engine_texts")
    engine.calls = np.inf
    engine.started.clear()
    engines.measure(Store(tmp_path, "x"), **SETTINGS)
    assert not texts.empty and tables.read(tmp_path, "engine_texts").equals(texts)
    engine.started.clear()
    engines.measure(Store(tmp_path, "x"), **SETTINGS)
    assert not engine.started
