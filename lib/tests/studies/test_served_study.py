"""The served study on the example's own logs: what is read, what is refused before anything runs, and its tables."""

import json
from dataclasses import replace

import numpy as np
import pytest
from transformers import MistralConfig, MixtralConfig, PreTrainedConfig, Qwen3NextConfig

from lib.cost import served
from lib.cost.candidates import Limits
from lib.lab import tables
from lib.lab.findings import Results
from lib.measure.parameters import CHECKS
from lib.models import PairError, load_pair, load_served, prompts
from lib.replay import logs
from lib.studies.report import Ask
from lib.studies.served import findings, measure
from lib.training import example_log

TARGET = load_served("base", ["tiny-base"], dtype="float32")
VALUES = dict(logs="", inputs="", endpoint="", served="", prompts="", temperature=-1.0, target="base",
              drafters=["lookup", "tiny-base"], costs="H100, bfloat16", dtype="auto", device="cpu")


@pytest.fixture(scope="module")
def texts():
    return logs.select(measure.read("", "", TARGET), range(10))


@pytest.fixture(scope="module")
def competing():
    return measure.entrants(TARGET, ["lookup"])


def test_no_weights_of_the_target_are_read():
    assert TARGET.name == "base" and TARGET.parameters == load_pair("base/tiny-base").target.num_parameters()
    assert set(TARGET.drafters) == {"tiny-base"} and len(TARGET.folders) == 1
    assert TARGET.eos_token_ids == load_pair("base/tiny-base").eos_token_ids


SMALL = dict(vocab_size=4096, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=48, eos_token_id=0)
OTHERS = {"window": MistralConfig(sliding_window=16, **SMALL), "mixture": MixtralConfig(num_local_experts=4, **SMALL),
          "hybrid": Qwen3NextConfig(layer_types=["linear_attention", "full_attention"], num_experts=4, head_dim=8,
                                    num_experts_per_tok=2, moe_intermediate_size=16, **SMALL),
          "unknown": PreTrainedConfig(), "tokenizer alone": None}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_target_that_never_runs_needs_its_tokenizer_alone(kind, tmp_path, texts):
    TARGET.tokenizer.save_pretrained(tmp_path / "t")
    if config := OTHERS[kind]:
        config.save_pretrained(tmp_path / "t")
    values = VALUES | {"target": str(tmp_path / "t")}
    CHECKS["08_served"]["drafters"]("drafters", values)
    target = load_served(values["target"], ["tiny-base"], dtype="float32")
    assert target.eos_token_ids == TARGET.eos_token_ids and target.name == "t"
    found = measure.replayed(measure.entrants(target, ["lookup", "sam"]), texts, 0.7, Limits(2, 2))
    own = measure.replayed(measure.entrants(TARGET, ["lookup", "sam"]), texts, 0.7, Limits(2, 2))
    assert [each.tokens for each in found] == [each.tokens for each in own]
    if kind in ("window", "mixture", "hybrid"):
        prices = measure.prices("H100, bfloat16", target, [1], 4)
        assert prices[1]["tiny-base"].plain == pytest.approx(2 * target.parameters / 3.35e12)
        with pytest.raises(PairError, match="cannot verify a tree|holds no weights"):  # a drafter has to run
            CHECKS["08_served"]["drafters"]("drafters", VALUES | {"drafters": [values["target"]]})
    else:
        with pytest.raises(PairError, match=r"t, from which costs.*cannot be counted .*; give costs as a table"):
            measure.prices("H100, bfloat16", target, [1], 4)
    (tmp_path / "theirs.csv").write_text("batch,nodes,check_ms,draft_ms\n1,0,5,1\n1,4,6,1\n")
    assert measure.prices(str(tmp_path / "theirs.csv"), target, [1], 4)[1]["tiny-base"].plain == 0.005


def test_a_target_without_a_tokenizer_is_refused_and_drafters_have_the_weights_that_were_asked_for(tmp_path):
    MistralConfig(**SMALL).save_pretrained(tmp_path / "t")
    with pytest.raises(PairError, match="t cannot be read as a model|tokenizer"):
        CHECKS["08_served"]["drafters"]("drafters", VALUES | {"target": str(tmp_path / "t"), "drafters": ["lookup"]})
    assert load_served("base", ["tiny-base"], dtype="int8").drafters["tiny-base"].quantised == "int8"


def test_the_example_is_what_its_recipe_writes():
    rows = [json.loads(line) for line in measure.EXAMPLE.read_text(encoding="utf-8").splitlines()]
    pair = load_pair("base", dtype="float32")
    first = rows[0]["response"]["choices"][0]["token_ids"]
    asked = prompts.PromptSet(("a",), ("k",), (logs.torch.tensor(rows[0]["response"]["prompt_token_ids"]),))
    [line] = example_log.lines(pair, asked, [first])
    assert json.loads(line)["response"] == rows[0]["response"] and len(rows) == 24


def test_tables_and_sentences_are_those_of_the_logs(texts, competing, tmp_path):
    tried = measure.replayed(competing, texts, 0.7, Limits(4, 4))
    known = measure.prices("AVX2 laptop, float32", TARGET, [1, 8], 4)
    rng = np.random.default_rng(0)
    listed = measure.listed(tried, known, rng)
    chain = listed[(listed["drafter"] == "tiny-base") & (listed["shape"] == "chain:2") & (listed["batch"] == 1)].iloc[0]
    own = known[1]["tiny-base"]
    assert chain["speedup"] == pytest.approx(chain["tokens"] * own.plain / (2 * own.level(1) + own.check(2)))
    apart = measure.by_text_alone(competing, texts, TARGET.tokenizer, 0.7)
    assert set(apart["answers"]) == {5} and set(apart["drafter"]) == {"lookup", "tiny-base"}
    for name, rows in (("served_candidates", listed), ("served_text", apart)):
        tables.write(tmp_path, name, rows, "mark")
    found = [served.recommend(tried, prices, batch, texts, rng) for batch, prices in known.items()]
    told = served.ForLogs("base", "AVX2 laptop, float32", 0.7, 10, found)
    shown = findings.recommended(told)
    told.save(tmp_path / served.FILE)
    kept = json.loads((tmp_path / served.FILE).read_text(encoding="utf-8"))
    assert [own["batch"] for own in kept["by_batch"]] == [1, 8] and kept["by_batch"][0]["tree"] in told.text()
    assert all(one["setting"] in told.text() for own in found if not own.is_plain for one in own.settings)
    assert "computed by a roofline" in shown.claim and list(shown.tables[0].index) == [1, 8]
    assert f"{listed[listed['batch'] == 1]['tokens'].max():.2f}" in findings.tokens(listed).claim
    assert "naive sampling at temperature 0.7" in findings.read(texts, 0.7).text
    assert "known 5 by token ids, 0 by logged tokens, 5 by text alone" in findings.read(texts, 0.7).claim
    (tmp_path / "run.json").write_text(json.dumps({"stages": {}, "parameters": {"08_served": {"logs": "mine.jsonl"}}}))
    parts = list(findings.report(Results(tmp_path), Ask("t/d", 2), rng))
    assert parts[0] == findings.SERVED and len(parts) == 3
    (tmp_path / "run.json").write_text(json.dumps({"stages": {}, "parameters": {"08_served": {"logs": ""}}}))
    assert not list(findings.report(Results(tmp_path), Ask("t/d", 2), rng)), "the example is no finding"


def test_without_ids_the_examples_answers_stand_in(texts, competing):
    alone = logs.select(texts, [row for row, by in enumerate(texts.known_by) if by == logs.BY_TEXT])
    rows = measure.by_text_alone(competing, alone, TARGET.tokenizer, 0.7)
    assert set(rows["answers"]) == {12} and set(rows["drafter"]) == {"lookup", "sam"}
    assert "No answer of this log has ids" in findings.text_alone(rows).claim


def test_the_temperature_is_asked_for_where_the_log_does_not_tell_it(texts):
    assert measure.temperature_of(measure.AS_LOGGED, texts) == 0.7 and measure.temperature_of(0.3, texts) == 0.3
    for told in ((), (0.0, 0.7)):
        with pytest.raises(ValueError, match="give the one at which its answers were written"):
            measure.temperature_of(measure.AS_LOGGED, replace(texts, temperatures=told))


@pytest.mark.parametrize("name, value, message", [
    ("drafters", ["recycling"], "'recycling' needs the target's logits or hidden states"),
    ("drafters", ["eagle3"], "'eagle3' needs the target's logits"),
    ("drafters", ["nowhere/nothing/model"], "there is no folder nowhere/nothing/model"),
    ("logs", "nothing.jsonl", "no log at .*nothing.jsonl"), ("inputs", "nothing.jsonl", "no file at nothing.jsonl"),
    ("endpoint", "localhost", "endpoint is 'localhost'; give a url"),
    ("endpoint", "http://127.0.0.1:1/v1", "served is empty"),
    ("costs", "H200", "no costs at .*; give a CSV file .* or one of H100, bfloat16")])
def test_what_cannot_be_used_is_refused_before_anything_runs(name, value, message):
    for each, check in CHECKS["08_served"].items():
        if each in VALUES:
            check(each, VALUES)
    with pytest.raises((ValueError, FileNotFoundError, LookupError), match=message):
        CHECKS["08_served"][name](name, VALUES | {name: value})


def test_a_servers_answers_are_a_log(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(measure.endpoint, "collect",
                        lambda url, requests, kinds, folder: asked.update(requests) or kinds)
    settings = dict(first=1, new_tokens=5, temperature=0.0, seed=3)
    kinds = measure.ask("http://x/v1", "mine", TARGET, "", str(tmp_path), **settings)
    assert len(set(kinds.values())) == len(kinds) == 8
    assert all(isinstance(each["prompt"], str) and each["max_tokens"] == 5 and each["seed"] == 3
               for each in asked.values())
    with pytest.raises(ValueError, match="give the one at which the server shall answer"):
        measure.ask("http://x/v1", "mine", TARGET, "", str(tmp_path), **settings | {"temperature": -1.0})


def test_costs_of_other_batches_are_refused(tmp_path):
    (tmp_path / "theirs.csv").write_text("batch,nodes,check_ms\n1,0,5\n1,4,6\n")
    with pytest.raises(ValueError, match="has no batch 8, but 1: measure it"):
        measure.prices(str(tmp_path / "theirs.csv"), TARGET, [1, 8], 4)
