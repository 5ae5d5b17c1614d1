"""The served study on the example's own logs: what is read, what is refused before anything runs, and its tables."""

import json
from dataclasses import replace

import pytest
from transformers import MistralConfig, MixtralConfig, PreTrainedConfig, Qwen3NextConfig

from lib.cost import served
from lib.cost.candidates import Limits
from lib.forward import load_pair, load_served
from lib.forward.packed import parameters_of
from lib.lab.chapter import Store
from lib.measure import served as study
from lib.measure.parameters import CHECKS
from lib.models import PairError
from lib.models.load import num_parameters
from lib.replay import logs

PARAMETERS = CHECKS["08_served"]
TARGET = load_served("base", ["tiny-base"], dtype="float32")
VALUES = dict(logs="", inputs="", endpoint="", served="", prompts="", temperature=-1.0, target="base",
              drafters=["lookup", "tiny-base"], costs="H100, bfloat16", dtype="auto", device="cpu")


@pytest.fixture(scope="module")
def texts():
    return study.read("", "", TARGET).select(range(10))


@pytest.fixture(scope="module")
def competing():
    return study.entrants(TARGET, ["lookup"])


def test_no_weights_of_the_target_are_read():
    assert TARGET.name == "base"
    assert num_parameters(TARGET.name, TARGET.config) == parameters_of(load_pair("base/tiny-base").target)
    assert set(TARGET.drafters) == {"tiny-base"}
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
    found = study.replayed(study.entrants(target, ["lookup", "sam"]), texts, 0.7, Limits(2, 2))
    own = study.replayed(study.entrants(TARGET, ["lookup", "sam"]), texts, 0.7, Limits(2, 2))
    assert [each.tokens for each in found] == [each.tokens for each in own]
    if kind in ("window", "mixture", "hybrid"):
        prices = study.prices("H100, bfloat16", target, [1], 4)
        assert prices[1]["tiny-base"].plain == pytest.approx(2 * num_parameters("t", target.config) / 3.35e12)
        with pytest.raises(PairError, match="cannot verify a draft|no file named model.safetensors"):
            load_served(values["target"], [values["target"]])  # a drafter has to run
    else:
        with pytest.raises(PairError, match=r"t cannot be read as a model .*; without its parameters, give costs as a table"):
            study.prices("H100, bfloat16", target, [1], 4)
    (tmp_path / "theirs.csv").write_text("batch,nodes,check_ms,draft_ms\n1,0,5,1\n1,4,6,1\n")
    assert study.prices(str(tmp_path / "theirs.csv"), target, [1], 4)[1]["tiny-base"].plain == 0.005


def test_a_target_without_a_tokenizer_is_refused_and_drafters_have_the_weights_that_were_asked_for(tmp_path):
    MistralConfig(**SMALL).save_pretrained(tmp_path / "t")
    with pytest.raises(PairError, match="t cannot be read as a model|tokenizer"):
        CHECKS["08_served"]["drafters"]("drafters", VALUES | {"target": str(tmp_path / "t"), "drafters": ["lookup"]})
    assert load_served("base", ["tiny-base"], dtype="int8").drafters["tiny-base"].quantised == "int8"


def test_the_tables_are_those_of_the_log(tmp_path):
    rows = [json.loads(line) for line in study.EXAMPLE.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps(row) for row in rows[:12]]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, "[1]"]), encoding="utf-8")
    settings = dict(log=str(tmp_path / "log.jsonl"), inputs="", url="", served="", prompts="", ask_prompts=1,
                    new_tokens=4, target="base", drafters=["lookup", "tiny-base"], temperature=-1.0,
                    costs="AVX2 laptop, float32", batches=[1, 8], most_nodes=4, most_depth=4, dtype="float32",
                    device="cpu", seed=0)
    store = Store(tmp_path, "mark")
    study.measure(store, **settings)
    read, tried, apart = (store.open(f"served_{name}").frame() for name in ("answers", "candidates", "text"))
    assert read["known_by"].value_counts().to_dict() == {"token ids": 6, "text alone": 6, "refused": 1}
    assert read.loc[read["known_by"] == "refused", "remark"].tolist() == [
        "it has another form (AttributeError: 'list' object has no attribute 'get')"]
    assert set(apart["drafter"]) == {"lookup", "tiny-base"} and set(apart["answers"]) == {6}
    chain = tried[(tried["drafter"] == "tiny-base") & (tried["shape"] == "chain:2") & (tried["batch"] == 1)].iloc[0]
    price = study.prices("AVX2 laptop, float32", TARGET, [1], 4)[1]["tiny-base"]
    assert chain["speedup"] == pytest.approx(chain["tokens"] * price.plain / (2 * price.level(1) + price.check(2)))
    told = json.loads((tmp_path / served.FILE).read_text(encoding="utf-8"))
    assert [one["batch"] for one in told["by_batch"]] == [1, 8] and told["answers"] == 12
    assert {path.name for path in study.files_of(settings["log"], "", "base", settings["drafters"], "")} == {
        "log.jsonl", "base", "tiny-base"}


def test_without_ids_the_examples_answers_stand_in(texts, competing):
    alone = texts.select([row for row, by in enumerate(texts.known_by) if by == logs.BY_TEXT])
    rows = study.by_text_alone(competing, alone, TARGET.tokenizer, 0.7)
    assert set(rows["answers"]) == {12} and set(rows["drafter"]) == {"lookup", "sam"}
    assert rows["example"].all()


def test_the_temperature_is_asked_for_where_the_log_does_not_tell_it(texts):
    assert study.temperature_of(study.AS_LOGGED, texts) == 0.7 and study.temperature_of(0.3, texts) == 0.3
    for told in ((), (0.0, 0.7)):
        with pytest.raises(ValueError, match="give the one at which its answers were written"):
            study.temperature_of(study.AS_LOGGED, replace(texts, temperatures=told))


@pytest.mark.parametrize("name, value, message", [
    ("drafters", ["medusa"], "'medusa' needs the target's logits or hidden states"),
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
    monkeypatch.setattr(study.endpoint, "collect",
                        lambda url, requests, kinds, folder: asked.update(requests) or kinds)
    settings = dict(first=1, new_tokens=5, temperature=0.0, seed=3)
    kinds = study.ask("http://x/v1", "mine", TARGET, "", str(tmp_path), **settings)
    assert len(set(kinds.values())) == len(kinds) == 6
    assert all(isinstance(each["prompt"], str) and each["max_tokens"] == 5 and each["seed"] == 3
               for each in asked.values())
    with pytest.raises(ValueError, match="give the one at which the server shall answer"):
        study.ask("http://x/v1", "mine", TARGET, "", str(tmp_path), **settings | {"temperature": -1.0})


def test_costs_of_other_batches_are_refused(tmp_path):
    (tmp_path / "theirs.csv").write_text("batch,nodes,check_ms\n1,0,5\n1,4,6\n")
    with pytest.raises(ValueError, match="has no batch 8, but 1: measure it"):
        study.prices(str(tmp_path / "theirs.csv"), TARGET, [1, 8], 4)
