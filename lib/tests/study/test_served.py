"""Logs as a source of texts: rounds start where the text decides every tree, speeds follow from replay and a file of
costs, and what a log cannot tell is refused.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib.engines.methods import PLAIN, Way
from lib.forward import load_served
from lib.lab import provenance, stats
from lib.lab.chapter import Store
from lib.study import answer, served, speed
from lib.study.acceptance import record, replay
from lib.study.bench import CHOOSING, JUDGING
from lib.study.served import bench_of, drafters_of, read
from lib.study.settings import Speed
from lib.tests.notebook_settings import defaults
from lib.trees import named

EXAMPLE = provenance.HOME / "data" / "logs" / "example.jsonl"  # answers that the shipped `base` wrote
LONGEST = 4
ROWS = [("plain", "nodes:0", 0, 10.0), ("forced", "nodes:1", 1, 10.0), ("forced", "nodes:8", 8, 12.0),
        ("model", "chain:1", 1, 1.0), ("model", "chain:4", 4, 4.0)]
COSTS = pd.DataFrame([("there", batch, *row) for batch in (1, 8) for row in ROWS],
                     columns=["backend", "batch", "method", "shape", "nodes", "ms"])


@pytest.fixture(scope="module")
def target():
    return load_served("base", ["tiny-base"], dtype="float32")


@pytest.fixture(scope="module")
def log_file(tmp_path_factory):
    """Twelve answers of the example and a line that is none."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_text("\n".join([*EXAMPLE.read_text(encoding="utf-8").splitlines()[:12], "[1]"]), encoding="utf-8")
    return path


@pytest.fixture
def bench(target, log_file, tmp_path):
    return bench_of(read(log_file, target, 0.0, LONGEST), Store(tmp_path, "05", "mark"), LONGEST, seed=0)


def test_all_trees_have_the_same_starts_and_every_round_is_decided(bench):
    """The rounds of each tree give all tokens of the part in which rounds start, and at most a round more."""
    drafters = drafters_of(bench.backend, ["lookup"])
    recorded = record(bench, drafters)
    ways = [Way(f"{name}, {shape}", name, named(shape), shape, drafter) for name, drafter in drafters.items()
            for shape in ("chain:1", "chain:4", "independent:2@8")]
    for way, rounds in replay(bench, recorded, ways, range(12)).items():
        for row, sizes in rounds.items():
            tokens = (sizes[:, 1] + 1).sum()
            ended = recorded.trace.ended[row]
            assert ended or recorded.trace.lengths[row] <= tokens <= recorded.trace.lengths[row] + LONGEST, way


def test_answers_are_predictions_at_the_costs_of_each_backend_of_the_file(log_file, tmp_path, capsys):
    pd.concat([COSTS, COSTS[COSTS["method"] != "model"].assign(backend="other")]).to_csv(tmp_path / "theirs.csv", index=False)
    settings = defaults(Speed, pairs=["base/tiny-base"], dtype="float32", logs=str(log_file), drafters=["lookup"],
                        most_depth=LONGEST, most_nodes=63, most_raced=4, costs=str(tmp_path / "theirs.csv"))
    store = Store(tmp_path, "05", "mark")
    speed.measure(store, settings)
    assert "vLLM, ngram" in answer.text(tmp_path)
    bench, recorded, _ = served.measure(store, settings)
    answers = bench.store.open("answers").frame().set_index(["backend", "batch", "role"]).sort_index()
    assert {*answers.index.get_level_values("backend")} == {"there (theirs)", "other (theirs)"}
    assert (answers["raced"] == 0).all() and (answers.loc["other (theirs)", "drafter"] != "model").all()
    assert "model is left out: the costs of other have no rows of the method model" in capsys.readouterr().out
    recommended = answers.loc[("there (theirs)", 1, "recommended")]
    predictions = bench.store.open("predictions").frame().query("backend == 'there (theirs)' and part == @JUDGING and batch == 1")
    assert recommended["value"] == pytest.approx(predictions.set_index("way").loc[recommended["way"], "value"])
    assert recommended["value"] > 1 and recommended["nodes"] <= 8, "no larger than what was timed"
    rounds = bench.store.open("rounds").frame()
    chosen = (rounds["drafter"] == recommended["drafter"]) & (rounds["shape"] == recommended["shape"])
    steps = rounds[chosen].set_index("prompt")["rounds"]
    lengths = dict(zip(bench.prompts.names, recorded.trace.lengths))
    names = [bench.prompts.names[row] for row in bench.rows(JUDGING)]
    tokens = sum(np.log(lengths[name] / steps[name]) for name in names) / len(names)
    assert recommended["value"] <= np.exp(tokens), "a round takes no less than a plain step"
    assert {*rounds["drafter"]} == {"lookup", "model"}, "the pair's draft model is replayed too"
    assert {*bench.parts} == {CHOOSING, JUDGING} and abs(bench.parts.count(CHOOSING) - 6) <= 1


def test_the_table_of_texts_tells_how_tokens_are_known_and_what_was_refused(bench):
    record(bench, {})
    texts = bench.rows_of("texts")
    assert texts["temperature"].unique().tolist() == [0.7] and (texts["target"] == "base").all()
    refused = texts[texts["tokens"] == 0]
    assert refused["prompt"].tolist() == ["log.jsonl, line 13"] and "it is [1], no object" in refused["remark"].iloc[0]
    assert texts["remark"].value_counts()[["token ids", "text alone"]].tolist() == [6, 6]


def test_nothing_is_decoded_here(bench):
    with pytest.raises(RuntimeError, match="measure_served.py writes a file of costs where the model is served"):
        bench.backend.start(Way(PLAIN, PLAIN), window=9, batch=1, log=bench.store.folder)


def test_a_drafter_that_needs_more_than_text_is_refused(bench):
    for spec in ("medusa", "eagle3"):
        with pytest.raises(ValueError, match=f"'{spec}' needs the target's logits or hidden states"):
            drafters_of(bench.backend, [spec])


def test_the_temperature_is_that_of_the_log_or_the_given_one(target, log_file, tmp_path):
    assert read(log_file, target, None, LONGEST).temperature == 0.7
    rows = [json.loads(line) for line in log_file.read_text().splitlines()[:12]]

    def written(change):
        for row in rows[:6]:
            change(row.get("request", row))
        (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / "other.jsonl"

    with pytest.raises(ValueError, match="answers at the temperatures 0.0, 0.7; give those of one"):
        read(written(lambda body: body.update(temperature=0.0)), target, 0.0, LONGEST)
    rows = rows[:6]
    assert read(written(lambda body: body.pop("temperature")), target, 0.3, LONGEST).temperature == 0.3
    with pytest.raises(ValueError, match="the log names no temperature; add --set temperature=0.7"):
        read(tmp_path / "other.jsonl", target, None, LONGEST)
    rows = [row | {"id": name} for row in rows[:1] for name in "ab"]
    with pytest.raises(ValueError, match="all answers are to one prompt, or of one conversation"):
        read(written(dict.copy), target, 0.0, LONGEST)
    with pytest.raises(ValueError, match="answers have more than 10001 tokens; give longer answers"):
        read(log_file, target, 0.0, 10_000)


def test_conversations_are_in_one_part(target, log_file):
    log = read(log_file, target, 0.0, LONGEST)
    names = tuple(f"talk {row // 3} turn {row % 3 + 1}" for row in range(len(log.texts.names)))
    bench = bench_of(replace(log, texts=replace(log.texts, names=names)), Store("", "05", "x"), LONGEST, seed=1)
    parts = {}
    for name, part in zip(bench.prompts.names, bench.parts):
        parts.setdefault(stats.unit(name), set()).add(part)
    assert all(len(both) == 1 for both in parts.values()) and sorted(bench.prompts.turns)[0] == 1
    assert max(bench.prompts.turns) == 3


def test_a_servers_answers_are_a_log(target, tmp_path, monkeypatch):
    sent = {}
    monkeypatch.setattr(served.endpoint, "collect",
                        lambda url, requests, kinds, folder: sent.update(requests) or kinds)
    settings = SimpleNamespace(endpoint="http://x/v1", served="mine", prompts="", choose_prompts=1, judge_prompts=1,
                               new_tokens=5, temperature=None, seed=3)
    kinds = served.ask(target, settings, tmp_path)
    assert len(kinds) == 12 and len(set(kinds.values())) == 6
    assert all(isinstance(body["prompt"], str) and body["max_tokens"] == 5 and body["seed"] == 3
               and body["temperature"] == 0 for body in sent.values())
    (tmp_path / "p.jsonl").write_text('{"prompt": "who?", "tools": [{"type": "function"}]}')
    settings.prompts = tmp_path / "p.jsonl"
    with pytest.raises(ValueError, match="p.jsonl, line 1: base has no chat template for tools; leave it out"):
        served.ask(target, settings, tmp_path)
