"""Notebook 2's tables: replayed rows beside live decoding, who competes, and one trace for all."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lib.drafters.registry import make
from lib.engines.own import Own
from lib.lab.chapter import Store
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.replay import atlas, recording
from lib.study import shapes_compared as study
from lib.study.acceptance import record, replay, traces_folder
from lib.study.bench import CHOOSING, JUDGING, Bench, without_loops
from lib.tests import small_models
from lib.tests.live import decode
from lib.tests.replay.test_recording import Tokenizer
from lib.trees import named

TARGET = small_models.llama(0)
TARGET.generation_config.eos_token_id = None
PAIR = Pair("t/d", TARGET, small_models.related(TARGET, 1, noise=0.3), Tokenizer(), "t", "d")
ALONE = Pair("t", TARGET, None, Tokenizer(), "t", "none")
PROMPTS = PromptSet(tuple("abcdef"), ("k", "l") * 3, tuple(small_models.prompts(0, (9, 12, 7, 8, 15, 6))), (1,) * 6)
SHAPES = ["chain:8", "kary:2@6", "optimal@6", "frequent@6"]
SETTINGS = dict(
    pairs=["small/tiny", "small/tiny-small"], drafters=["model", "lookup", "eagle3", "merged"], prompts="",
    choose_prompts=1, judge_prompts=1, new_tokens=8, temperatures=[0.0, 1.0], families=["star"], budgets=[2], budget=4,
    chain_lengths=[3], live_shapes=["chain:2"], live_tokens=6, dtype="float32", device="cpu", seed=0, publish="")


def bench_of(folder, pair=PAIR, temperature=0.0, longest=8) -> Bench:
    parts = [CHOOSING] * 2 + [JUDGING] * 4
    backend = Own(pair, PROMPTS.ids, temperature)
    return Bench(backend, Store(folder, "02", "m"), "t", PROMPTS, parts, 24, {1: 0}, longest, [])


def test_replayed_rows_are_those_of_live_decoding(tmp_path):
    """By ranks and by drafting again, of static trees and of trees that grow."""
    bench, drafters = bench_of(tmp_path), {name: make(name, PAIR) for name in ("model", "combined", "lookup", "sam")}
    made = record(bench, drafters)
    for name, drafter in drafters.items():
        shapes = SHAPES if name in made.trace.ranks else SHAPES[:2]
        shapes = [*shapes, *(["opttree:3,4@7", "dyspec@9"] if drafter.traits.grows else [])]
        ways = study.ways_of(name, drafter, made.trace, shapes)
        assert [way.shape_name for way in ways] == shapes
        replay(bench, made, ways, range(len(bench.prompts.names)))
        for way in ways:
            done = decode(TARGET, drafter, PROMPTS.ids, shape=way.shape, max_new_tokens=24)
            live = [(1, one.drafted, one.accepted) for one in done.rounds]
            rows = bench.store.open("rounds").frame().query("drafter == @name and shape == @way.shape_name")
            for row, prompt in enumerate(PROMPTS.names):
                counts = rows.set_index("prompt").loc[prompt, ["rounds", "drafted", "accepted"]].tolist()
                assert counts == np.sum([sizes for sizes, one in zip(live, done.rounds) if one.row == row], 0).tolist()


def test_who_competes(capsys):
    names = list(study.competing([PAIR], ["sam", "merged", "random", "model", "adaptive"], 0, 0))
    assert names == ["model", "sam", "random"], "draft models first; without what decodes live, and one control"
    assert list(study.competing([PAIR, PAIR], ["model", "sam"], 0, 0)) == ["model (d)", "sam", "random"]
    without = ["ngrams", "eagle3", "combined:behind=eagle3", "model:vocabulary=8192", "sam"]
    assert list(study.competing([PAIR], without, 0, 0)) == ["sam", "ngrams", "random"], "n-grams of the text have ranks"
    assert list(study.competing([ALONE], ["model", "combined", "lookup"], 0, 0)) == ["lookup", "ngrams", "random"]
    assert list(study.competing([PAIR], ["model", "sam"], 300, 0)) == ["sam", "ngrams", "random"]
    assert "model is left out: prompt and new tokens need 300 positions" in capsys.readouterr().out


def test_a_trace_serves_all_that_need_its_text(tmp_path, monkeypatch):
    """A second notebook takes the first one's text where weights, prompts and drafters are equal."""
    drafters = {"model": make("model", PAIR)}
    first = record(bench_of(tmp_path), drafters)
    monkeypatch.setattr(recording, "record_batch", lambda *batch: pytest.fail("recorded again"))
    same = replace(bench_of(tmp_path), store=Store(tmp_path, "05", "other"))
    second = record(same, drafters)
    assert np.array_equal(first.trace.ranks["model"], second.trace.ranks["model"])
    assert first.trace.labels == second.trace.labels and len([*(tmp_path / "traces").iterdir()]) == 1
    for other in (bench_of(tmp_path, longest=9), replace(same, new_tokens=25), bench_of(tmp_path, temperature=1.0),
                  replace(same, prompts=PROMPTS.select(range(5))),
                  bench_of(tmp_path, replace(PAIR, target=small_models.llama(1)))):
        with pytest.raises(pytest.fail.Exception, match="recorded again"):
            record(other, drafters)
    assert traces_folder(same, {}, {}) != traces_folder(same, drafters, {})


def test_looping_texts_choose_and_judge_no_tree(tmp_path):
    bench = bench_of(tmp_path)
    record(bench, {})
    table = bench.store.open("texts")
    rows = table.frame().drop(columns="fingerprint").assign(loops=[name in "ad" for name in PROMPTS.names])
    table.path.unlink()
    bench.store.open("texts").extend(rows)
    used = without_loops(bench)
    assert [[bench.prompts.names[row] for row in used.rows(part)] for part in (CHOOSING, JUDGING)] == [["b"], [*"cef"]]


def test_a_measured_chapter_has_all_tables(tmp_path, monkeypatch):
    store, settings = Store(tmp_path, "02", "mark"), SimpleNamespace(**SETTINGS | {"publish": str(tmp_path)})
    with monkeypatch.context() as stopped:
        stopped.setattr(study, "decode_live", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            study.measure(store, settings)
    rows = store.open("rounds").frame()
    with monkeypatch.context() as kept:
        kept.setattr(study, "replay", lambda bench, recorded, ways, rows: None if bench.backend.temperature or not ways
                     else pytest.fail("replayed again"))
        kept.setattr(atlas, "publish", lambda *_: pytest.fail("published again"))
        study.measure(store, settings)
    written = {name: store.open(name).frame() for name in (
        "prompts", "texts", "rounds", "depth", "nodes", "position", "rank", "live", "expected", "answer")}
    assert all(map(len, written.values())) and written["rounds"].equals(rows)
    parts = written["prompts"].set_index("prompt")["part"]
    assert set(parts) == {CHOOSING, JUDGING} and set(rows["prompt"].map(parts)) == {JUDGING}
    greedy = rows[rows["temperature"] == 0].groupby("drafter")["shape"].unique().map(set)
    assert set(greedy.index) == {"model (tiny)", "model (tiny-small)", "eagle3", "lookup", "random"}
    assert {"chain:2", "chain:3", "chain:4", "star@4", "optimal@2", "opttree:4,8,0.05@4"} <= greedy["model (tiny)"]
    assert greedy["lookup"] == {"chain:2", "chain:3", "chain:4", "kary:2@2", "kary:2@4"}
    assert set(written["live"]["drafter"]) == {"merged", "model"} and written["live"]["identical"].all()
    for _, worked in written["answer"].groupby("round"):
        assert worked["role"].iloc[[0, -1]].tolist() == ["root", "bonus"] and worked["parent"].iloc[0] == -1
    published = atlas.load(tmp_path / "small.continuation.npz")
    tally = atlas.evaluate(published, "model (tiny)", named("chain:4")).set_index("prompt")["accepted"]
    own = rows.query("drafter == 'model (tiny)' and shape == 'chain:4' and temperature == 0").set_index("prompt")
    assert (own["accepted"] == tally[own.index]).all()
    assert set(published.drafts) == {"model (tiny)", "model (tiny-small)", "eagle3"}
