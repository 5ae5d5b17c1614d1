"""Engines' settings: read back as written, refused where they cannot be, and the nearest where a tree is too rich."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaConfig

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.engines import settings as engines
from lib.engines.settings import CHAINED, ENGINES, GROWN, SAME, why_none
from lib.engines.settings import scheduled
from lib.engines.vllm import SCHEDULE, ranges
from lib.engines.writer import CHAIN, DYNAMIC, FOLDER, GGUF, LONGEST, Dynamic
from lib.forward import load_pair
from lib.tests import small_models
from lib.tests.engines.setting_readers import READERS, read_schedule
from lib.tests.replay.test_replay import trees
from lib.training import heads as training
from lib.trees import named, shapes


@st.composite
def dynamics(draw):
    steps, top_k = draw(st.integers(1, 8)), draw(st.integers(1, 10))
    return Dynamic(steps, top_k, draw(st.integers(steps, top_k + (steps - 1) * top_k**2)))


OF_FORM = {
    CHAIN: st.integers(1, 20).map(shapes.chain),
    DYNAMIC: dynamics(),
}
PLACES = {FOLDER: "org/drafter", GGUF: "my models/drafter.gguf"}


def line(name, setting, drafter=None):
    """The setting of an engine by its name, for the first kind of drafter if none is given."""
    engine = ENGINES[name]
    return engine.line(setting, drafter or next(iter(engine.drafters)), PLACES.get(engine.reads, ""))


def grown_by(name, setting):
    """The dynamic tree that an engine grows: TensorRT-LLM's has room for all nodes within its top-k of each level."""
    room = max(setting.top_k, -(-setting.nodes // setting.steps))
    return Dynamic(setting.steps, room, setting.nodes) if name.startswith("TensorRT-LLM") else setting


@pytest.mark.parametrize("name", ENGINES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_what_is_written_is_read_back(name, data):
    engine = ENGINES[name]
    setting = data.draw(OF_FORM[engine.form])
    for drafter in engine.drafters:
        written = line(name, setting, drafter)
        assert READERS[name](written) == (grown_by(name, setting) if engine.form == DYNAMIC else setting)
        assert "\n" not in written and (not engine.reads or PLACES[engine.reads] in written)


def test_the_texts_are_those_of_the_engines():
    dynamic = Dynamic(8, 10, 59)
    assert line("EAGLE-2, EAGLE-3", dynamic, "eagle3") == (
        "EaModel.from_pretrained(use_eagle3=True, ea_model_path='org/drafter', total_token=60, depth=7, top_k=10)")
    flag, value = shlex.split(line("vLLM, chain", shapes.chain(5)))
    assert flag == "--speculative-config"
    assert json.loads(value) == {"method": "draft_model", "model": "org/drafter", "num_speculative_tokens": 5}
    assert line("SGLang, chain", shapes.chain(3)).endswith(
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4")
    assert line("TensorRT-LLM, dynamic tree", Dynamic(4, 10, 59)) == (
        "Eagle3DecodingConfig(max_draft_len=4, max_total_draft_tokens=59, speculative_model='org/drafter', "
        "use_dynamic_tree=True, dynamic_tree_max_topK=15)"), "at most 4 levels of 15"
    assert line("llama.cpp", shapes.chain(3)) == (
        "-md 'my models/drafter.gguf' --spec-type draft-simple --spec-draft-n-max 3 --spec-draft-p-min 0")
    assert "--speculative-algorithm EAGLE3 " in line("SGLang, chain", shapes.chain(3), "eagle3")
    assert '"method": "medusa"' in line("vLLM, chain", shapes.chain(3), "medusa")
    assert json.loads(shlex.split(line("vLLM, n-gram", shapes.chain(4)))[1]) == {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    assert line("llama.cpp, n-gram", shapes.chain(4)).startswith("--spec-type ngram-simple ")
    assert "size-n 2 " in line("llama.cpp, n-gram", shapes.chain(2))  # it drafts nothing that is shorter than that


def test_nothing_names_what_engines_have_removed_or_no_drafter_at_all():
    written = [line(name, setting, drafter) for name, engine in ENGINES.items() for drafter in engine.drafters
               for setting in [shapes.chain(3) if engine.form == CHAIN else Dynamic(3, 2, 6)]]
    gone = ("speculative_token_tree", "tree_choices", "eagle_choices", "medusa_choices", "draft-max", "DRAFTER")
    assert not [(text, word) for text in written for word in gone if word in text]


def test_transformers_takes_its_line():
    class AutoModelForCausalLM:
        def from_pretrained(place):
            return SimpleNamespace(generation_config=GenerationConfig(), place=place)

    names = {"AutoModelForCausalLM": AutoModelForCausalLM}
    exec(line("transformers", shapes.chain(7)), names)
    config = names["assistant_model"].generation_config
    assert names["assistant_model"].place == "org/drafter" and config.num_assistant_tokens == 7
    assert config.assistant_confidence_threshold == 0.0


@settings(deadline=None)
@given(trees().filter(lambda tree: tree.budget))
def test_a_dynamic_tree_can_grow_what_the_static_one_holds(tree):
    dynamic = Dynamic.like(tree)
    assert dynamic.nodes == tree.budget and dynamic.steps == tree.max_depth
    assert dynamic.nodes <= dynamic.top_k + (dynamic.steps - 1) * dynamic.top_k**2, "as many as it can choose from"
    assert max(len(tree.children(node)) for node in range(tree.size)) <= dynamic.top_k


DRAFTED = st.sampled_from(["model", "lookup", "lookup:3", "sam", "adaptive", "ngrams", "medusa", "eagle3", "dflash",
                           "none"])


@settings(deadline=None)
@given(trees(), st.integers(0, 6).map(shapes.chain), DRAFTED)
def test_settings_name_the_drafter_and_draft_the_tree_or_the_chain(tree, chain, drafter):
    rows = engines.settings(drafter, tree, chain, PLACES)
    assert all(drafter.partition(":")[0] in ENGINES[row["engine"]].drafters for row in rows)
    assert tree.budget or not rows
    for row in rows:
        read = READERS[row["engine"]](row["setting"])
        grown = row["draft"] == GROWN and grown_by(row["engine"], Dynamic.like(tree))
        assert read == {SAME: tree, CHAINED: chain, GROWN: grown}[row["draft"]]


def test_a_rule_is_drafted_as_a_dynamic_tree_or_as_the_best_chain():
    rule = named("opttree:4,8,0.05@32")
    for row in engines.settings("eagle3", rule, shapes.chain(3), PLACES):
        read = READERS[row["engine"]](row["setting"])
        assert read == {CHAINED: shapes.chain(3), GROWN: Dynamic(8, 4, 32)}[row["draft"]]


def test_engines_run_what_they_have():
    named = {drafter: {row["engine"] for row in engines.settings(drafter, shapes.kary(2, 2), shapes.chain(3), PLACES)}
             for drafter in ("lookup", "sam", "adaptive:pays", "model")}
    assert named["lookup"] == {"transformers, look-up", "vLLM, n-gram", "SGLang, n-gram", "llama.cpp, n-gram",
                               "OpenVINO GenAI, look-up"}
    assert named["sam"] == {"vLLM, suffix", "SGLang, n-gram"}
    assert named["model"] == {"transformers", "vLLM, chain", "SGLang, chain", "llama.cpp"}
    assert not named["adaptive:pays"]


def test_an_engine_that_cannot_read_a_drafters_weights_is_left_out():
    tree, chain = shapes.kary(2, 2), shapes.chain(3)
    named = {form: {row["engine"] for row in engines.settings("model", tree, chain, {form: PLACES[form]})}
             for form in PLACES}
    assert named == {FOLDER: {"transformers", "vLLM, chain", "SGLang, chain"}, GGUF: {"llama.cpp"}}
    assert not engines.settings("model", tree, chain, {}) and not engines.settings("eagle3", tree, chain, {})
    assert len(engines.settings("lookup", tree, chain, {})) == 5, "look-up has none"
    assert why_none("eagle3") == "no checkpoint of eagle3 exists that an engine reads"
    assert why_none("adaptive") == "no engine runs adaptive"


def entrant(spec, model=None, **drafter):
    return SimpleNamespace(spec=spec, pair=SimpleNamespace(draft_model=model), drafter=SimpleNamespace(**drafter))


def test_weights_are_where_the_drafter_was_loaded_from(tmp_path):
    model = small_models.related(small_models.llama(3), 4, 0.05)
    assert engines.places(entrant("model", model)) == {}, "made in memory"
    for name in ("random:llama-68m", str(tmp_path / "nowhere")):
        model.name_or_path = name
        assert engines.places(entrant("model", model)) == {}
    model.name_or_path = "org/drafter"
    assert engines.places(entrant("model", model)) == {FOLDER: "org/drafter"}
    (file := tmp_path / "drafter.gguf").write_bytes(b"GGUF")
    model.name_or_path, model.gguf_file = str(tmp_path), str(file)
    assert engines.places(entrant("model", model)) == {FOLDER: str(tmp_path), GGUF: str(file)}
    pair = load_pair("base/tiny")
    shipped = SimpleNamespace(spec="model", pair=pair, drafter=LanguageModelDrafter(pair.draft_model))
    assert engines.places(shipped) == {FOLDER: "data/models/tiny"}


def test_a_head_in_this_projects_own_format_is_read_by_no_engine(tmp_path):
    published = LlamaConfig(hidden_size=96, num_attention_heads=3, num_key_value_heads=1)
    here = training.settings("eagle3", published)
    for config, known in ((published, {FOLDER: str(tmp_path)}), (here, {})):
        drafter = dict(name_or_path=str(tmp_path), head=SimpleNamespace(config=config))
        assert engines.places(entrant("eagle3", **drafter)) == known
    assert engines.places(entrant("lookup")) == {}


# ------------------------------------------------------------------------------------------------------------ schedule


def rows_of(drafter, length):
    return engines.settings(drafter, shapes.chain(length), shapes.chain(length), PLACES) if length else None


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 64), st.integers(0, 9), min_size=1, max_size=6),
       st.sampled_from(["lookup", "model", "eagle3"]))
def test_vllm_drafts_at_each_batch_size_as_many_as_are_recommended_there(lengths, drafter):
    """Between two batch sizes as many as at the smaller one; 0 is plain decoding."""
    found = scheduled({batch: rows_of(drafter, length) for batch, length in lengths.items()})
    wanted, last = [], lengths[min(lengths)]
    for batch in range(1, 71):
        last = lengths.get(batch, last)
        wanted.append(last)
    for batch, rows in found.items():
        told = [row for row in rows if row["engine"].startswith("vLLM")]
        assert len(told) == bool(lengths[batch]) and len(rows) == len(rows_of(drafter, lengths[batch]) or ())
        for row in told:
            assert (SCHEDULE in row["setting"]) == (len(set(lengths.values())) > 1)
            assert READERS[row["engine"]](row["setting"]) == shapes.chain(max(lengths.values()))
            assert SCHEDULE not in row["setting"] or read_schedule(row["setting"], 70) == wanted


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 5), min_size=1),
       st.sampled_from(["eagle3", "model"]))
def test_sglang_adapts_the_steps_of_eagle_alone(lengths, drafter):
    """It takes those of the largest batch size in its file that a batch reaches, and starts with one of them."""
    found = scheduled({batch: rows_of(drafter, length) for batch, length in lengths.items()})
    for batch, rows in found.items():
        for row in (row for row in rows if row["engine"] == "SGLang, chain"):
            given_, _, told = row["setting"].partition("  # which holds ")
            assert bool(told) == (drafter == "eagle3" and len(set(lengths.values())) > 1)
            steps = {int(first): own["candidate_steps"] for first, own in json.loads(told).items()} if told else {}
            assert READERS[row["engine"]](given_.split(" --speculative-adaptive")[0]) == shapes.chain(
                max(steps.values())[0] if told else lengths[batch])
            for reached, length in lengths.items() if told else ():
                assert steps[max(first for first in steps if first <= reached)] == [length]


def test_methods_have_a_schedule_each_and_suffix_decoding_has_none():
    """Suffix decoding chooses a length for each request by itself."""
    found = scheduled({1: rows_of("lookup", 7), 4: rows_of("sam", 3), 8: rows_of("lookup", 2),
                               16: rows_of("sam", 1)})
    told = {batch: {row["engine"]: row["setting"] for row in rows} for batch, rows in found.items()}
    assert json.loads(shlex.split(told[8]["vLLM, n-gram"])[1])[SCHEDULE] == [[1, 3, 7], [8, 15, 2]]
    assert told[1]["vLLM, n-gram"] == told[8]["vLLM, n-gram"]
    assert told[4]["vLLM, suffix"] == line("vLLM, suffix", shapes.chain(3))
    assert ranges({4: 2, 8: 2, 16: 0}, [1, 4, 8, 16]) == [[1, 15, 2], [16, 16, 0]], "the first begins at 1"


def test_transformers_takes_prompt_lookup():
    config = GenerationConfig(prompt_lookup_num_tokens=4, max_matching_ngram_size=LONGEST)
    assert config.validate() is None and LookupDrafter().longest == LONGEST


def test_the_readmes_lines_are_what_engines_take():
    """The settings in the README's example output, whose lines are wrapped."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    output = next(block for block in text.split("```") if " tokens each\n" in block).replace("\n    ", " ")
    shown = dict(re.findall(r"^  (\w[\w.-]*, [\w -]+) \(.*?\): (.+)$", output, re.M))
    assert "vLLM, suffix" in shown
    for name, text in shown.items():
        assert line(name, READERS[name](text)) == text
