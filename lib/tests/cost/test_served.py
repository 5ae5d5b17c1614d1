"""The recommendation from logs: tables of costs as they are read, and what follows for known acceptance."""

import ast
import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Lfm2Config,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3NextConfig,
)

from lib.cost import check_shapes, measure_served, recommendation, served
from lib.cost.candidates import Entrant, Limits, static
from lib.cost.recommendation import ONE, PLAIN
from lib.cost.roofline import HARDWARE
from lib.decoding import continuations
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.replay import logs, recording
from lib.replay.simulated import Recorded
from lib.tests import small_models
from lib.tests.engines import setting_readers as engine_readers
from lib.trees import named

TARGET = small_models.llama(3)
DRAFTER = small_models.related(TARGET, 4, 0.05)
PROMPTS = small_models.prompts(5, [12, 9, 14, 10, 11, 13, 8, 9, 10, 12, 9, 11, 10, 9, 12, 11, 10, 8, 9, 10])
WRITTEN = continuations(TARGET, PROMPTS, max_new_tokens=20, rows=8)
COSTS = "batch,nodes,check_ms,draft_ms\n1,0,10,1\n1,8,12,1\n8,0,20,2\n8,8,80,2\n"


def texts():
    count = len(PROMPTS)
    kinds = tuple("ab"[row // 2 % 2] for row in range(count))
    return logs.LoggedTexts(tuple(map(str, range(count))), kinds, tuple(PROMPTS),
                            tuple(WRITTEN), (False,) * count, (logs.BY_IDS,) * count, (0.0,), {})


def tried(limits=Limits(8, 4)):
    pair = SimpleNamespace(target=None, target_name="t", draft_model=DRAFTER)
    entrants = [Entrant("model", "model", pair, LanguageModelDrafter(DRAFTER)),
                Entrant("lookup", "lookup", pair, LookupDrafter())]
    trace = recording.read(None, {"model": DRAFTER}, texts(), temperature=0.0)
    return [each for entrant in entrants for each in static(entrant, Recorded(trace, texts().prompts), limits)]


def prices(tmp_path, text=COSTS):
    (tmp_path / "theirs.csv").write_text(text)
    return {batch: {"": price, "model": price} for batch, price in served.read_costs(tmp_path / "theirs.csv").items()}


def test_the_fastest_candidate_on_one_half_is_judged_on_the_other(tmp_path):
    price, found = prices(tmp_path), tried()
    own = served.recommend(found, price[1], 1, texts(), np.random.default_rng(0))
    assert not own.is_plain and own.drafter == "model" and own.speedup.low > 1
    best = next(each for each in found if each.entrant.name == "model" and each.label == own.tree)
    judging = served.halves(texts())[1]
    names = [name for name, is_in in zip(texts().names, judging) if is_in]
    kept = [best.prompts.index(name) for name in names]
    tokens = 1 + best.accepted[kept].sum() / best.rounds[kept].sum()
    seconds = 0.010 + 0.002 * own.budget / 8 + 0.001 * sum(best.passes.values())
    assert own.speedup.value == pytest.approx(tokens * 0.010 / seconds)
    assert set(own.kinds) == {"a", "b"} and not own.settings, "no engine reads a model that was made in memory"
    assert own.choices == [list(path) for path in best.shape.choices()]
    assert own.over_chain.value == pytest.approx(1.0) or own.chain["tree"] != best.label
    at_eight = served.recommend(found, price[8], 8, texts(), np.random.default_rng(0))
    assert at_eight.budget < own.budget or at_eight.is_plain, "a check of eight nodes takes four plain steps there"


def test_a_nearly_as_fast_candidate_with_fewer_nodes_is_recommended_and_ties_are_told(tmp_path):
    price, found = prices(tmp_path, "batch,nodes,check_ms,draft_ms\n1,0,10,1\n1,8,10,1\n"), tried()
    own = served.recommend(found, price[1], 1, texts(), np.random.default_rng(0))
    choosing = {name for name, is_in in zip(texts().names, served.halves(texts())[0]) if is_in}
    speeds = [served.part_of(each, choosing).speedup(served.price_of(each, price[1]), 1) for each in found]
    near = [each.shape.budget for each, speed in zip(found, speeds) if speed >= 0.98 * max(speeds)]
    assert own.budget == min(near)
    fastest, *others = own.raced
    assert fastest.name.startswith("model") and fastest.over_fastest == ONE and own.raced_on == 10
    assert [each.name.partition(",")[0] for each in others] == ["lookup", PLAIN]
    assert not any(each.tied or each.over_fastest.high >= 1 for each in others)
    twice = [replace(each, entrant=replace(each.entrant, name="again")) for each in found
             if each.entrant.name == "model"]
    alike = served.recommend(found + twice, {**price[1], "again": price[1]["model"]}, 1, texts(),
                             np.random.default_rng(0))
    assert [each.name.partition(",")[0] for each in alike.raced if each.tied] == ["model", "again"]
    assert "again" in alike.ties and "lookup" not in alike.ties


def test_vllms_line_has_the_length_for_each_batch_size(tmp_path, monkeypatch):
    monkeypatch.setattr(DRAFTER, "name_or_path", "org/drafter", raising=False)
    price, found = prices(tmp_path), tried()
    first, at_eight = recommendation.with_schedule([served.recommend(found, price[batch], batch, texts(),
                                                             np.random.default_rng(0)) for batch in (1, 8)])
    [line] = [row["setting"] for row in first.settings if row["engine"] == "vLLM, chain"]
    lengths = engine_readers.read_schedule(line, 9)
    assert '"model": "org/drafter"' in line and lengths[0] == lengths[6] > lengths[7] == lengths[8]
    assert (lengths[7] == 0) == at_eight.is_plain
    assert at_eight.is_plain or line in [row["setting"] for row in at_eight.settings]


def test_drafters_without_a_model_draft_for_nothing_and_others_need_a_time(tmp_path):
    price = prices(tmp_path, COSTS.replace(",draft_ms", "").replace(",1\n", "\n").replace(",2\n", "\n"))
    of_text = [each for each in tried() if each.entrant.name == "lookup"]
    assert served.recommend(of_text, price[1], 1, texts(), np.random.default_rng(0)).drafter == "lookup"
    with pytest.raises(ValueError, match="drafter 'model' has a model, but the costs have no draft_ms"):
        served.recommend(tried(), price[1], 1, texts(), np.random.default_rng(0))


def test_a_roofline_gives_costs_by_size():
    machine = HARDWARE["H100, bfloat16"]
    price = served.computed("H100, bfloat16", 8e9, 1e9, [1, 256], 64)
    assert price[1].plain == pytest.approx(8e9 * 2 / 3.35e12) and price[1].level(1) == pytest.approx(price[1].plain / 8)
    assert price[1].check(64) == pytest.approx(price[1].plain)
    assert price[256].check(64) / price[256].plain == pytest.approx(machine.check(64, 256))
    assert machine.check(64, 256) > 9


@pytest.mark.parametrize("text, message", [
    ("batch,nodes\n1,0\n", "lacks the column check_ms"), ("batch,nodes,check_ms\n1,0,x\n", "is no table of costs"),
    ("batch,nodes,check_ms\n1,0,5\n", "has at batch 1 the nodes 0; give 0, a plain step, and one or more larger"),
    ("batch,nodes,check_ms\n1,2,5\n", "has at batch 1 the nodes 2"),
    ("batch,nodes,check_ms\n1.5,0,5\n", "has batch 1.5"), ("batch,nodes,check_ms\n1,-1,5\n", "has nodes -1"),
    ("batch,nodes,check_ms\n1,0,0\n", "has check_ms 0; give milliseconds"),
    ("batch,nodes,check_ms,draft_ms\n1,0,5,-2\n", "has draft_ms -2"), ("\0\n", "is no table|lacks the column"),
    ("", "is no table of costs")])
def test_a_table_that_is_none_is_refused(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        prices(tmp_path, text)
    with pytest.raises(FileNotFoundError, match="no costs at .*; give a CSV file .* or one of H100, bfloat16"):
        served.read_costs(tmp_path / "nothing.csv")


def run_script(monkeypatch, model, **settings):
    monkeypatch.setattr(measure_served.AutoModelForCausalLM, "from_pretrained", lambda name, dtype: model)
    monkeypatch.setattr(measure_served.AutoTokenizer, "from_pretrained", lambda name: letters())
    return measure_served.times("t", **dict(dtype="auto", device="cpu", batches=[1, 2], nodes=(0, 4), prefix=20,
                                            repeats=2) | settings)


def letters():
    """A tokenizer with a token for each of a few letters, as many as the small models have."""
    return lambda text, add_special_tokens: {"input_ids": [ord(letter) % small_models.VOCABULARY for letter in text]}


def test_the_script_writes_what_is_read(tmp_path, monkeypatch):
    target = run_script(monkeypatch, TARGET)
    assert set(target) == {(1, 0), (1, 4), (2, 0), (2, 4)} and min(target.values()) > 0
    file = io.StringIO()
    measure_served.write(target, {(1, 0): 0.5, (2, 0): 0.75}, file)
    price = prices(tmp_path, file.getvalue())
    assert price[2]["model"].level(1) == pytest.approx(0.00075) and set(price) == {1, 2}
    for batch in (1, 8):
        assert {named(name).budget for name in check_shapes(batch, 64)} <= set(measure_served.NODES)
    source = ast.parse(Path(measure_served.__file__).read_text(encoding="utf-8"))
    names = {(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
             for node in ast.walk(source) if isinstance(node, (ast.Import, ast.ImportFrom))}
    assert names - {*sys.stdlib_module_names} == {"torch", "transformers"}, "it runs where nothing else is installed"


def test_the_script_times_the_tokens_of_a_text():
    ids = letters()("some text of mine", False)["input_ids"]
    rows = measure_served.rows(letters(), "some text of mine", 3, 40).tolist()
    assert all("".join(map(chr, row)) in "".join(map(chr, ids)) * 5 for row in rows) and rows[0][:17] == ids
    assert len({tuple(row) for row in rows}) == 3, "sequences are at different places of the text"
    assert len(measure_served.TEXT.split()) > 300 and "def " in measure_served.TEXT
    with pytest.raises(SystemExit, match="the text has no token"):
        measure_served.rows(letters(), "", 1, 4)


SIZES = dict(vocab_size=small_models.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=48)


@pytest.mark.parametrize("config", [
    MistralConfig(sliding_window=8, **SIZES), MixtralConfig(num_local_experts=4, **SIZES),
    Lfm2Config(layer_types=["conv", "full_attention"], **SIZES)], ids=lambda config: config.model_type)
def test_windows_mixtures_and_convolutions_are_timed_on_the_same_text_again(config, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = measure_served.rows(letters(), measure_served.TEXT, 2, 30)
    cache = model(tokens[:, :20], use_cache=True).past_key_values
    measure_served.check_crop("t", model, tokens[:, 20:], cache)
    after = model(tokens[:, 20:24], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(after, model(tokens[:, :24]).logits[:, 20:], rtol=1e-4, atol=1e-5)
    assert set(run_script(monkeypatch, model)) == {(1, 0), (1, 4), (2, 0), (2, 4)}


@pytest.mark.parametrize("config, name", [
    (Qwen3NextConfig(layer_types=["linear_attention", "full_attention"], num_experts=4, num_experts_per_tok=2,
                     moe_intermediate_size=16, head_dim=8, **SIZES), "LinearAttentionLayer"),
    (MambaConfig(vocab_size=small_models.VOCABULARY, hidden_size=32, num_hidden_layers=2), "NoneType|Linear")],
    ids=["hybrid", "mamba"])
def test_a_cache_that_cannot_be_cropped_is_refused_by_name(config, name, monkeypatch):
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(SystemExit, match=rf"the cache of t \(({name})\) cannot be cropped .*write the table by hand"):
        run_script(monkeypatch, model)


def test_a_crop_that_leaves_its_traces_is_found(monkeypatch):
    """A layer of which an older version of transformers does not say that it cannot be cropped."""
    monkeypatch.setattr(DynamicCache, "crop", lambda cache, count: None)
    with pytest.raises(SystemExit, match=r"the cache of t \(DynamicLayer\) cannot be cropped"):
        run_script(monkeypatch, TARGET)
