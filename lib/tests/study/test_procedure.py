"""The five steps on a backend whose clock is a formula: what is predicted is then what is raced."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.engines.methods import PLAIN
from lib.engines.registry import Served
from lib.forward.load import load_pair
from lib.lab import stats, tables
from lib.lab.chapter import Store
from lib.models.prompts import load
from lib.study import answer, candidates
from lib.study.answer import best, break_even
from lib.study.bench import Bench, arranged
from lib.study.predict import best_length, leviathan_speedup, theoretical_speedup
from lib.tests.engines.stand_in import StandIn

PAIR = load_pair


@pytest.fixture(scope="module")
def pair():
    return load_pair("base/tiny-base")


def measured(pair, engine, folder: Path):
    texts = load("", pair.tokenizer, limit=400, first=2)
    prompts, parts = arranged(texts, 1, 1, np.random.default_rng(0))
    bench = Bench(Served("stand-in", engine, target=pair.target), Store(folder, "x"), prompts, parts, 12, [1, 2], 4,
                  list(pair.eos_token_ids))
    ways = candidates.engine_ways(bench.backend, {"lookup": pair, "tiny-base": pair}, (1, 2, 4))
    return answer.measure(bench, lambda trace: ways, {}, {1: 8, 2: 4}, 8)


def test_predictions_are_what_is_raced_and_a_stopped_run_goes_on(pair, tmp_path):
    engine = StandIn()
    done = measured(pair, engine, tmp_path)
    timed, predictions = (tables.read(tmp_path, name) for name in ("timed", "predictions"))
    for (batch, part), rows in timed.groupby(["batch", "part"]):
        for way in set(rows["way"]) - {PLAIN}:
            foreseen = predictions.set_index(["batch", "way", "part"]).loc[(batch, way, part)]
            if foreseen["n"] == rows["call"].nunique():
                logs = answer.measured_logs(rows, way)
                assert np.exp(logs.mean()) == pytest.approx(foreseen["value"], rel=1e-6)
    started = len(engine.started)
    assert measured(pair, engine, tmp_path) == done and len(engine.started) == started


def test_an_engine_that_dies_leaves_its_rows(pair, tmp_path):
    engine = StandIn(calls=40)
    with pytest.raises(Exception, match="status -9"):
        measured(pair, engine, tmp_path)
    texts = tables.read(tmp_path, "texts")
    engine.calls = float("inf")
    measured(pair, engine, tmp_path)
    assert tables.read(tmp_path, "texts").iloc[: len(texts)].equals(texts)


def test_of_ways_nearly_as_fast_the_smallest_wins():
    class Sized:
        def __init__(self, nodes):
            self.nodes = nodes
    ways = {"a": Sized(8), "b": Sized(4), "c": Sized(2)}
    assert best({"a": 1.50, "b": 1.46, "c": 1.40, PLAIN: 1.0}, ways) == "b"
    assert best({"a": 1.02, PLAIN: 1.0}, ways) == PLAIN


def test_whole_calls_break_even_where_both_lines_meet():
    def row(way, prefill, tokens, per_token):
        return dict(way=way, prefill=prefill, tokens=tokens, seconds=prefill + (tokens - 1) * per_token)
    rows = pd.DataFrame([row("w", 2.0, 11, 0.5), row(PLAIN, 1.0, 11, 1.0)])
    assert break_even(rows, "w", 1) == pytest.approx(3.0)
    assert break_even(pd.DataFrame([row("w", 1.0, 5, 2.0), row(PLAIN, 1.0, 5, 1.0)]), "w", 1) == np.inf


def test_formulas_of_the_weblog_and_of_leviathan():
    assert theoretical_speedup(0.0, 5, 0.1) == pytest.approx(4.0) and theoretical_speedup(1.0, 5, 0.1) == 0.1
    assert [best_length(theoretical_speedup, alpha, 0.1) for alpha in (0.6, 0.8)] == [19, 19]
    assert [best_length(leviathan_speedup, alpha, 0.1) for alpha in (0.6, 0.8)] == [3, 6]


@pytest.mark.parametrize("skewed", [False, True])
def test_two_phase_intervals_cover_as_they_say(skewed):
    """39 units, 13 of them raced, predictions with an error and an offset of their own."""
    generator, hits, runs = np.random.default_rng(5), 0, 400
    for _ in range(runs):
        values = generator.gamma(1.5, 0.3, 39) if skewed else generator.normal(0.5, 0.35, 39)
        truth = 0.05 + (0.45 if skewed else 0.5)
        raced, others = values[:13], values[13:]
        measured = raced + 0.05 + generator.normal(0, 0.08, 13)
        made = stats.two_phase(measured, raced, others, generator)
        hits += np.log(made.low) <= truth <= np.log(made.high)
    assert hits / runs >= 0.92
    assert stats.two_phase(raced, raced * 0, raced[:0], generator).value == pytest.approx(np.exp(raced.mean()))
