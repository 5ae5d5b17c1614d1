"""Engines by name, and the lines that a user copies: read back as written, and only of engines that run a drafter."""

import ast
import json
import shlex
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from lib.engines.methods import PLAIN_WAY, Method, Way
from lib.engines.registry import CHAIN, ENGINES, GROWN, lines, parse
from lib.engines.vllm import CONFIG, NUM_TOKENS, PROPOSER, SCHEDULE, ranges
from lib.forward import load_pair
from lib.tests import small_models
from lib.trees import named
from lib.trees.shapes import chain

METHODS = [(name, method, tokens) for name, engine in ENGINES.items() for method in engine.methods
           for tokens in (1, 3, 16) if tokens >= method.least]
SPECS = ("lookup", "sam", "ngrams", "combined:behind=ngrams", "model", "eagle3")


@pytest.fixture(scope="module")
def pair():
    return load_pair("base/tiny-base")


def options(text: str) -> dict[str, str]:
    """A command line's options without dashes, each with its value."""
    words = shlex.split(text)
    return {word.lstrip("-"): value for word, value in zip(words, words[1:]) if word.startswith("-")}


def keywords(text: str) -> dict[str, object]:
    """The constant keywords of the last call of a line of Python."""
    call = ast.parse(text).body[-1].value
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}


def tokens_of(name: str, text: str) -> int:
    """The number of draft tokens that an engine reads in a line."""
    if name == "vllm":
        return json.loads(options(text)[CONFIG])[NUM_TOKENS]
    if name == "llama.cpp":
        return int(options(text).get("spec-draft-n-max") or options(text)["spec-ngram-simple-size-m"])
    given = keywords(text.partition("py: ")[2] or text)
    return given.get("prompt_lookup_num_tokens") or given.get("num_assistant_tokens") or len(given["parents"]) - 1


@pytest.mark.parametrize(("name", "method", "tokens"), METHODS,
                         ids=[f"{name}, {method.name}, {method.shape(tokens)}" for name, method, tokens in METHODS])
def test_a_line_says_what_the_setting_says(name, method, tokens):
    folder = "my models/drafter" if method.weights is not Method.weights else ""
    text = ENGINES[name].line(Way("", method.name, named(method.shape(tokens)), weights=folder))
    assert tokens_of(name, text) == tokens and "\n" not in text and folder in text
    assert ENGINES[name].line(PLAIN_WAY) == ""


def test_engines_run_what_they_have_and_a_drafter_without_a_folder_or_tables_is_left_out(pair):
    named = {spec: [row["engine"] for row in lines(pair, spec, 3, {})] for spec in SPECS}
    assert named["lookup"] == ["vLLM, ngram", "llama.cpp, ngram-simple", "ik_llama.cpp, lookup",
                               "OpenVINO GenAI, prompt_lookup", "transformers, prompt_lookup", "SGLang (not run here)"]
    assert named["sam"] == ["vLLM, suffix", "vLLM, custom_class/sam", "ik_llama.cpp, sam"]
    assert named["model"] == ["vLLM, draft_model", "OpenVINO GenAI, draft_model",
                              "transformers, assistant_model"], "base is no GGUF file"
    assert not lines(pair, "adaptive", 3, {}) and not lines(pair, "lookup", 0, {})
    assert lines(pair, "model", 3, {})[0]["setting"].count("data/models/tiny-base") == 1, "from the root on"
    model = small_models.llama(3)
    model.name_or_path = "org/target"
    made = SimpleNamespace(target=model, target_name="t", draft_model=model)
    assert not [row for spec in ("model", "ngrams", "eagle3") for row in lines(made, spec, 3, {})]


def test_a_head_is_exported_for_a_chain_and_for_a_tree_that_grows(monkeypatch):
    monkeypatch.setattr("lib.engines.exports.write_head", lambda source, target, made: made)
    rows = lines(SimpleNamespace(target_name="smollm2-135m", target=None), "eagle3", 5, {})
    by_engine = {row["engine"]: row for row in rows}
    assert by_engine["OpenVINO GenAI, eagle3/2x3"]["draft"] == GROWN
    assert by_engine["vLLM, eagle3"]["draft"] == CHAIN
    given = options(by_engine["SGLang (not run here)"]["setting"])
    assert given["speculative-num-draft-tokens"] == "6" and given["speculative-num-steps"] == "5"
    assert given["speculative-draft-model-path"].endswith("smollm2-135m-eagle3")


def test_transformers_takes_its_lines():
    line = ENGINES["transformers"].line(Way("", "assistant_model", chain(7), weights="org/drafter"))
    (config := GenerationConfig()).update(**keywords(line))
    assert config.num_assistant_tokens == 7 and config.assistant_confidence_threshold == 0.0
    assert config.num_assistant_tokens_schedule == "constant" and "from_pretrained('org/drafter')" in line


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 64), st.integers(0, 9), min_size=1, max_size=6))
def test_vllm_drafts_at_each_batch_size_as_many_as_are_recommended_there(lengths):
    """Between two batch sizes as many as at the smaller one; 0 is plain decoding. vLLM takes the last range beyond."""
    schedule, batches = ranges(lengths), range(1, max(lengths) + 1)
    smaller = [max([size for size in lengths if size <= batch], default=min(lengths)) for batch in batches]
    assert all(first <= last for first, last, _ in schedule)
    assert [(batch, tokens) for first, last, tokens in schedule for batch in range(first, last + 1)] == [
        (batch, lengths[size]) for batch, size in zip(batches, smaller)]
    for method, has_schedule in (("ngram", True), ("suffix", False)):
        way = Way("", method, chain(1), weights="", schedule=schedule)
        config = json.loads(options(ENGINES["vllm"].line(way))[CONFIG])
        assert (SCHEDULE in config) == has_schedule
        assert config[NUM_TOKENS] == (max([1, *lengths.values()]) if has_schedule else 1)


def test_our_proposer_has_a_schedule_of_its_own(pair):
    rows = lines(pair, "sam", 4, {1: 4, 4: 2, 8: 0})
    (given,) = (options(row["setting"]) for row in rows if row["engine"] == "vLLM, custom_class/sam")
    assert json.loads(given["additional-config"]) == {PROPOSER: {"schedule": [[1, 3, 4], [4, 7, 2], [8, 8, 0]]}}
    assert json.loads(given[CONFIG]) == {"method": "custom_class", NUM_TOKENS: 4, "model": "draft_proposer.Sam"}
    assert "schedule" not in "".join(row["setting"] for row in lines(pair, "sam", 4, {1: 4, 8: 4}))


@pytest.mark.parametrize(("spec", "message"), [
    ("sglang", "engine is 'sglang'; choose one of vllm, llama.cpp"),
    ("vllm:float32:bfloat16", "give one number format at most"), ("openvino:stored", "of float32, bfloat16"),
    ("vllm:compiled:compiled", "each word once"), ("llama.cpp:int8", "of float32, bfloat16, stored")])
def test_an_engine_that_is_none_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        parse(spec)


def test_an_engine_has_its_format_and_options():
    engine = parse("vllm:bfloat16:compiled")
    assert (engine.name, engine.dtype, engine.compiled) == ("vllm:bfloat16:compiled", "bfloat16", True)
