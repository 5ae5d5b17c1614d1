"""The five steps on a backend whose clock is a formula: predictions are exact there, and stopped runs go on."""

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.engines.methods import PLAIN
from lib.forward.load import load_pair
from lib.lab import stats, tables
from lib.lab.chapter import Store
from lib.models.prompts import load
from lib.study import answer, candidates
from lib.study.answer import CHAIN, RECOMMENDED
from lib.study.bench import Bench, arranged
from lib.study.predict import best_length, leviathan_speedup, theoretical_speedup
from lib.study.race import drift
from lib.study.speed import measure_ways
from lib.tests.engines import stand_in
from lib.tests.engines.stand_in import StandIn


@pytest.fixture(scope="module")
def pair():
    return load_pair("base/tiny-base")


def bench_of(pair, engine, folder: Path, raced: dict[int, int] = {1: 8, 2: 4}) -> Bench:
    prompts, parts = arranged(load("", pair.tokenizer, limit=400, first=6), 3, 3, np.random.default_rng(0))
    return Bench(engine, Store(folder, "05", "x"), pair.target_name, prompts, parts, 12, raced, 4,
                 list(pair.eos_token_ids))


def measured(bench: Bench, pair) -> pd.DataFrame:
    ways = candidates.engine_ways(bench.backend, {"lookup": pair, "model": pair}, (1, 2, 4))
    measure_ways(bench, ways, most_nodes=8, most_raced=3)
    return bench.rows_of("answers")


def test_predictions_are_what_is_raced_and_a_stopped_run_goes_on(pair, tmp_path):
    engine = StandIn(pair.target)
    bench = bench_of(pair, engine, tmp_path)
    answers = measured(bench, pair)
    timed = tables.read(tmp_path, "05_timed")
    assert not timed["parted"].any()
    rounds = tables.read(tmp_path, "05_rounds").rename(columns={"prompt": "call"})
    rounds["way"] = rounds["drafter"] + rounds["shape"].str.removeprefix("chain")
    counted = timed.query("batch == 1").merge(rounds, on=["way", "call"])
    assert counted["accepted_x"].any() and (counted["accepted_x"] == counted["accepted_y"]).all()
    ratios = stats.speed_ratio(timed).query("way != @PLAIN")
    assert np.exp(ratios["log"]).to_numpy() == pytest.approx(ratios["predicted"].to_numpy(), rel=1e-6) and len(ratios)
    started = len(engine.started)
    assert measured(bench, pair).equals(answers) and len(engine.started) == started
    winner = answers.set_index(["batch", "role"])["value"].xs(RECOMMENDED, level="role")
    assert (winner >= answers[answers["role"] == CHAIN].set_index("batch")["value"].reindex(winner.index) / 1.04).all()


def test_an_engine_that_dies_leaves_its_rows(pair, tmp_path):
    engine = StandIn(pair.target, calls=60)
    bench = bench_of(pair, engine, tmp_path, {1: 8})
    with pytest.raises(RuntimeError, match="status -9"):
        measured(bench, pair)
    texts = tables.read(tmp_path, "05_texts")
    engine.calls = float("inf")
    measured(bench, pair)
    assert len(texts) and tables.read(tmp_path, "05_texts").iloc[: len(texts)].equals(texts)


def test_a_machine_whose_pace_changes_is_found(pair, tmp_path, monkeypatch, capsys):
    """Its points are timed more often, and a prediction without a race has no interval."""
    plain, paces = stand_in.Running.decode, cycle([1.0, 1.5])

    def uneven(running, *call, **options):
        decoded = plain(running, *call, **options)
        return replace(decoded, seconds=decoded.prefill + next(paces) * (decoded.seconds - decoded.prefill))

    claims = {}
    for decode, folder in ((plain, tmp_path / "even"), (uneven, tmp_path / "uneven")):
        monkeypatch.setattr(stand_in.Running, "decode", decode)
        bench = bench_of(pair, StandIn(pair.target), folder, {1: 0})
        claims[decode] = measured(bench, pair).query("way != @PLAIN")["low"].notna()
        assert set(bench.rows_of("costs").query("method == @PLAIN")["n"]) == {3 if decode is plain else 6}
    assert drift(bench) > 1.2 and claims[plain].all() and not claims[uneven].any()
    assert "no claim" in capsys.readouterr().out


def test_the_file_of_a_recommendation_has_each_role_and_at_most_twelve_lines(pair, tmp_path):
    bench = bench_of(pair, StandIn(pair.target), tmp_path, {1: 8})
    bench.store.open("settings").extend([
        dict(backend="stand-in", batch=1, engine="vllm", draft="the chain", setting="--k 4")])
    answers = measured(bench, pair)
    answer.save(bench, "m")
    saved = json.loads((tmp_path / answer.FILE).read_text())
    assert [row["role"] for row in saved["answers"]] == answers["role"].tolist()
    lines = answer.text(tmp_path).splitlines()
    assert len(lines) <= 12 and any("--k 4" in line for line in lines)


class Sized:
    """A way of so many nodes."""

    def __init__(self, nodes: int, method: str = "m", is_chain: bool = True):
        self.nodes, self.method, self.is_chain = nodes, method, is_chain


def test_of_ways_nearly_as_fast_the_smallest_wins():
    ways = {"a": Sized(8), "b": Sized(4), "c": Sized(2)}
    assert answer.fastest_small({"a": 1.50, "b": 1.46, "c": 1.40, PLAIN: 1.0}, ways) == "b"
    assert answer.fastest_small({"a": 1.02, PLAIN: 1.0}, ways) == PLAIN


def test_the_best_chain_and_the_best_tree_are_raced_and_drafters_come_before_sizes():
    ways = {"a4": Sized(4, "a"), "a5": Sized(5, "a"), "b4": Sized(4, "b"), "t": Sized(6, "a", False)}
    logs = {(name, 1): np.array([value]) for name, value in zip(ways, (0.50, 0.49, 0.30, 0.10))}
    assert answer.best_predicted(ways, logs, 1, 1) == ["a4"], "where one is predicted it is the fastest"
    assert answer.best_predicted(ways, logs, 1, 3) == ["a4", "t", "b4"]


def test_whole_calls_break_even_where_both_lines_meet():
    def row(way, prefill, tokens, per_token):
        return dict(way=way, prefill=prefill, tokens=tokens, seconds=prefill + (tokens - 1) * per_token)
    rows = pd.DataFrame([row("w", 2.0, 11, 0.5), row(PLAIN, 1.0, 11, 1.0)])
    assert answer.break_even(rows, "w", 1) == pytest.approx(3.0)
    assert answer.break_even(pd.DataFrame([row("w", 1.0, 5, 2.0), row(PLAIN, 1.0, 5, 1.0)]), "w", 1) == np.inf
    assert np.isnan(answer.break_even(rows.iloc[:0], "w", 1))


def test_the_best_tree_beside_the_best_chain_is_told_as_an_equivalence():
    assert "between 4 % slower and 6 % faster" in answer.about_trees(stats.Estimate(1.01, 0.96, 1.06))
    assert answer.about_trees(stats.Estimate(1.1, 1.02, 1.2)).startswith("a tree pays")
    assert "no tree pays" in answer.about_trees(stats.Estimate(0.9, 0.8, 0.97))
    assert "too few" in answer.about_trees(stats.Estimate(1.1))


def test_formulas_of_the_weblog_and_of_leviathan():
    assert theoretical_speedup(0.0, 5, 0.1) == pytest.approx(4.0) and theoretical_speedup(1.0, 5, 0.1) == 0.1
    assert [best_length(theoretical_speedup, alpha, 0.1) for alpha in (0.6, 0.8)] == [19, 19]
    assert [best_length(leviathan_speedup, alpha, 0.1) for alpha in (0.6, 0.8)] == [3, 6]
