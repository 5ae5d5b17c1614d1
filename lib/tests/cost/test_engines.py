"""Engines' settings: read back as written, refused where they cannot be, and the nearest where a tree is too rich."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

from lib.cost import engines
from lib.cost.engines import writers
from lib.cost.engines.registry import CHAINED, ENGINES, GROWN, SAME
from lib.cost.engines.writers import CHAIN, DYNAMIC, LEVELS, LONGEST, TREE, Dynamic
from lib.drafters.lookup import LookupDrafter
from lib.tests.cost.engine_readers import READERS
from lib.tests.replay.test_replay import trees
from lib.trees import Tree, growth, shapes
from lib.trees.growth.rules import Costs


@st.composite
def dynamics(draw):
    steps, top_k = draw(st.integers(1, 8)), draw(st.integers(1, 10))
    return Dynamic(steps, top_k, draw(st.integers(1, top_k + (steps - 1) * top_k**2)))


OF_FORM = {
    CHAIN: st.integers(1, 20).map(shapes.chain),
    LEVELS: st.lists(st.integers(1, 3), min_size=1, max_size=4).map(shapes.expansion),
    TREE: trees().filter(lambda tree: tree.budget),
    DYNAMIC: dynamics(),
}


@pytest.mark.parametrize("name", ENGINES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_what_is_written_is_read_back(name, data):
    engine = ENGINES[name]
    setting = data.draw(OF_FORM[engine.form])
    for drafter in engine.drafters:
        written = engine.line(setting, drafter)
        assert READERS[name](written) == setting and "\n" not in written


@pytest.mark.parametrize("name", [name for name, engine in ENGINES.items() if engine.form in (CHAIN, LEVELS)])
def test_what_an_engine_cannot_express_is_refused(name):
    for tree in (Tree.from_choices([(0,), (1,), (0, 0)]), Tree.from_choices([(1,)]), Tree([-1])):
        with pytest.raises(ValueError, match="give a"):
            ENGINES[name].write(tree)


def test_the_texts_are_those_of_the_engines():
    assert ENGINES["Medusa"].write(shapes.kary(2, 1)) == "medusa_choices = [(0,), (1,)]"
    assert writers.write_eagle(shapes.chain(2)) == "tree_choices = [[0], [0, 0]]"
    dynamic = Dynamic(8, 10, 59)
    assert writers.write_eagle_dynamic(dynamic) == "EaModel.from_pretrained(total_token=60, depth=7, top_k=10)"
    flag, value = shlex.split(writers.write_vllm(shapes.chain(5), "org/drafter"))
    assert flag == "--speculative-config"
    assert json.loads(value) == {"method": "draft_model", "model": "org/drafter", "num_speculative_tokens": 5}
    assert '"speculative_token_tree": "[(0,), (1,)]"' in writers.write_vllm_tree(shapes.star(2))
    assert writers.write_sglang(shapes.chain(3)).endswith(
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4")
    assert ENGINES["TensorRT-LLM, dynamic tree"].write(Dynamic(4, 10, 59)).startswith(
        "Eagle3DecodingConfig(max_draft_len=4, max_total_draft_tokens=59, ")
    assert ENGINES["llama.cpp"].write(shapes.chain(3)) == (
        "-md DRAFTER --spec-type draft-simple --spec-draft-n-max 3 --spec-draft-p-min 0")
    assert "--speculative-algorithm EAGLE3 " in ENGINES["SGLang, chain"].line(shapes.chain(3), "eagle3")
    assert '"method": "medusa"' in ENGINES["vLLM, chain"].line(shapes.chain(3), "medusa")
    assert ENGINES["vLLM, chain"].line(shapes.chain(3), "model") == writers.write_vllm(shapes.chain(3))
    assert json.loads(shlex.split(writers.write_vllm_ngram(shapes.chain(4)))[1]) == {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    assert writers.write_llama_cpp_ngram(shapes.chain(4)).startswith("--spec-type ngram-simple ")
    assert READERS["llama.cpp"]("-md DRAFTER --draft-max 5 --draft-min 0") == shapes.chain(5)  # older builds
    with pytest.raises(ValueError, match="dynamic tree and no chain"):
        READERS["SGLang, chain"](writers.write_sglang_dynamic(Dynamic(3, 2, 6)))
    with pytest.raises(ValueError, match="10 best"):
        ENGINES["Medusa"].write(Tree.from_choices([(10,)]))


def test_transformers_takes_its_line():
    class assistant_model:
        generation_config = GenerationConfig()

    exec(ENGINES["transformers"].write(shapes.chain(7)), {"assistant_model": assistant_model})
    assert assistant_model.generation_config.num_assistant_tokens == 7
    assert assistant_model.generation_config.assistant_confidence_threshold == 0.0


REFUSED = [
    ("Medusa", "medusa_choices = 5", "is no list of choices"), ("Medusa", "[('a',)]", "is no list of choices"),
    ("EAGLE-1", "tree_choices = [[0], [0, 0.5]]", "is no list of choices"),
    ("EAGLE-2, EAGLE-3", "EaModel.from_pretrained(total_token='x', depth=7, top_k=10)", "has total_token x"),
    ("EAGLE-2, EAGLE-3", "EaModel.from_pretrained(depth=7, top_k=10)", "lacks total_token"),
    ("vLLM, chain", "--speculative-config '{\"method\": 1}'", "lacks num_speculative_tokens"),
    ("vLLM, chain", "--speculative-config '{bad'", "has no --speculative-config with a JSON object"),
    ("vLLM, chain", "--speculative-config '[1]'", "has no --speculative-config with a JSON object"),
    ("vLLM, chain", "--model '", "is no command line"),
    ("vLLM, token tree", "--speculative-config '{\"num_speculative_tokens\": 3}'", "no speculative_token_tree"),
    ("SGLang, chain", "--speculative-num-steps x --speculative-eagle-topk 1", "has speculative-num-steps x"),
    ("TensorRT-LLM, Medusa", "MedusaDecodingConfig(medusa_choices=3)", "is no list of choices"),
    ("TensorRT-LLM, dynamic tree", "Eagle3DecodingConfig(use_dynamic_tree=True)", "lacks max_draft_len"),
    ("transformers", "f(num_assistant_tokens=-2, num_assistant_tokens_schedule='constant')",
     "has num_assistant_tokens"),
    ("llama.cpp", "--draft-max soon", "has draft-max soon"), ("llama.cpp", "-md model", "lacks spec-draft-n-max"),
]


@pytest.mark.parametrize("name, text, said", REFUSED)
def test_a_text_that_is_no_setting_is_refused_by_what_is_wrong_with_it(name, text, said):
    with pytest.raises(ValueError, match=said):
        READERS[name](text)


def test_options_may_stand_behind_an_equals_sign():
    for name, tree in {"vLLM, chain": shapes.chain(3), "llama.cpp": shapes.chain(3), "SGLang, chain": shapes.chain(3),
                       "SGLang, dynamic tree": Dynamic(3, 2, 6), "vLLM, token tree": shapes.kary(2, 2)}.items():
        words = shlex.split(ENGINES[name].write(tree))
        pairs = (f"{option}={value}" for option, value in zip(words[::2], words[1::2]))
        assert READERS[name](shlex.join(pairs)) == tree


def test_sglangs_chain_is_as_long_as_its_steps_whatever_is_said_of_tokens():
    for tokens in (2, 3, 99):
        text = f"--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens {tokens}"
        assert READERS["SGLang, chain"](text) == shapes.chain(3)


@settings(deadline=None)
@given(trees().filter(lambda tree: tree.budget))
def test_a_dynamic_tree_can_grow_what_the_static_one_holds(tree):
    dynamic = Dynamic.like(tree)
    assert dynamic.nodes == tree.budget and dynamic.steps == tree.max_depth
    assert dynamic.nodes <= dynamic.top_k + (dynamic.steps - 1) * dynamic.top_k**2, "as many as it can choose from"
    assert max(len(tree.children(node)) for node in range(tree.size)) <= dynamic.top_k


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_equal_levels_are_the_expansions(branching, data):
    assert engines.equal_levels(shapes.expansion(branching)) == branching
    whole = shapes.expansion([*branching, 2])
    cut = Tree(whole.parents[:-1], whole.rank[:-1])  # one child less in the last level
    alone = np.prod(branching) == 1
    assert engines.equal_levels(cut) == ([*branching, 1] if alone else None)


DRAFTED = st.sampled_from(["model", "lookup", "lookup:frequent", "sam", "recycling", "ngrams", "early_exit:6", "medusa",
                           "eagle", "eagle3", "block", "none"])


@settings(deadline=None)
@given(trees(), st.integers(0, 6).map(shapes.chain), DRAFTED)
def test_settings_name_the_drafter_and_draft_the_tree_or_the_chain(tree, chain, drafter):
    rows = engines.settings(drafter, tree, chain)
    assert all(drafter.partition(":")[0] in ENGINES[row["engine"]].drafters for row in rows)
    assert tree.budget or not rows
    for row in rows:
        read = READERS[row["engine"]](row["setting"])
        assert read == {SAME: tree, CHAINED: chain, GROWN: Dynamic.like(tree)}[row["draft"]]


def test_a_rule_is_drafted_as_a_dynamic_tree_or_as_the_best_chain():
    rule, costs = growth.parse("opttree:4,8,0.05@32"), Costs((1.0,) * 33, 0.0)
    for row in engines.settings("eagle3", rule, shapes.chain(3)):
        read = READERS[row["engine"]](row["setting"])
        assert read == {CHAINED: shapes.chain(3), GROWN: Dynamic(8, 4, 32)}[row["draft"]]
    automatic = engines.settings("eagle3", growth.parse("opttree:4,8,0.05@auto", costs=costs), shapes.chain(3))
    assert {row["draft"] for row in automatic} == {CHAINED}


def test_engines_run_what_they_have():
    named = {drafter: {row["engine"] for row in engines.settings(drafter, shapes.kary(2, 2), shapes.chain(3))}
             for drafter in ("lookup", "sam", "recycling", "early_exit:6", "model")}
    assert named["lookup"] == {"transformers, look-up", "vLLM, n-gram", "SGLang, n-gram", "llama.cpp, n-gram"}
    assert named["sam"] == {"vLLM, suffix", "SGLang, n-gram"}
    assert named["model"] == {"transformers", "vLLM, chain", "SGLang, chain", "llama.cpp"}
    assert not named["recycling"] and not named["early_exit:6"]


def test_transformers_takes_prompt_lookup():
    config = GenerationConfig(prompt_lookup_num_tokens=4, max_matching_ngram_size=LONGEST)
    assert config.validate() is None and LookupDrafter().longest == LONGEST


def test_the_readmes_lines_are_what_engines_take():
    """The settings in the README's example output, whose lines are wrapped."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    output = next(block for block in text.split("```") if " tokens each\n" in block).replace("\n    ", " ")
    shown = dict(re.findall(r"^  (\w[\w.-]*, [\w -]+) \(.*?\): (.+)$", output, re.M))
    assert "vLLM, suffix" in shown
    for name, line in shown.items():
        assert ENGINES[name].write(READERS[name](line)) == line
