"""The script that times what steps cost where a target is served: its table is read, and other caches are refused."""

import ast
import io
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from lib.engines import measure_served
from lib.study import costs_files
from lib.tests import small_models

TARGET = small_models.llama(3)
SIZES = dict(vocab_size=small_models.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=48)
SCRIPT = Path(measure_served.__file__).read_text(encoding="utf-8")
CELLS = {(1, 0), (1, 4), (2, 0), (2, 4)}


def letters():
    """A tokenizer with a token for each of a few letters, as many as the small models have."""
    return lambda text, add_special_tokens: {"input_ids": [ord(letter) % small_models.VOCABULARY for letter in text]}


def run_script(monkeypatch, model):
    monkeypatch.setattr(measure_served.AutoModelForCausalLM, "from_pretrained", lambda name, dtype: model)
    monkeypatch.setattr(measure_served.AutoTokenizer, "from_pretrained", lambda name: letters())
    return measure_served.times("t", dtype="auto", device="cpu", batches=[1, 2], nodes=(0, 4), prefix=20, repeats=2,
                                text=SCRIPT)


def test_the_script_writes_what_is_read_and_needs_torch_and_transformers_alone(tmp_path, monkeypatch):
    checks = run_script(monkeypatch, TARGET)
    assert set(checks) == CELLS and all(0 < low <= middle <= high for low, middle, high, _ in checks.values())
    file = io.StringIO()
    passes = {(1, 0): (0.4, 0.5, 0.6, 2), (2, 0): (0.7, 0.75, 0.8, 2)}
    measure_served.write("t", checks, passes, "a machine", file)
    (tmp_path / "theirs.csv").write_text(file.getvalue())
    rows = costs_files.read(tmp_path / "theirs.csv")
    costs = costs_files.of_backends(rows)["t"]
    assert 1000 * costs.plain(2) == pytest.approx(max(checks[1, 0][1], checks[2, 0][1]), rel=0.5)
    model = rows[(rows["method"] == "model") & (rows["batch"] == 2)].set_index("shape")["ms"]
    assert model["chain:1"] == 0.75 and model["chain:4"] == 3.0
    source = ast.parse(SCRIPT)
    names = {(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
             for node in ast.walk(source) if isinstance(node, (ast.Import, ast.ImportFrom))}
    assert names - {*sys.stdlib_module_names} == {"torch", "transformers"}


def test_the_script_times_the_tokens_of_a_text():
    ids = letters()("some text of mine", False)["input_ids"]
    rows = measure_served.rows(letters(), "some text of mine", 3, 40).tolist()
    assert all("".join(map(chr, row)) in "".join(map(chr, ids)) * 5 for row in rows) and rows[0][:17] == ids
    assert len({tuple(row) for row in rows}) == 3, "sequences are at different positions of the text"
    with pytest.raises(SystemExit, match="the text has no token"):
        measure_served.rows(letters(), "", 1, 4)


@pytest.mark.parametrize("config", [
    transformers.MistralConfig(sliding_window=8, **SIZES), transformers.MixtralConfig(num_local_experts=4, **SIZES),
    transformers.Lfm2Config(layer_types=["conv", "full_attention"], **SIZES)], ids=lambda config: config.model_type)
def test_windows_mixtures_and_convolutions_are_timed_on_the_same_text_again(config, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = measure_served.rows(letters(), SCRIPT, 2, 30)
    cache = model(tokens[:, :20], use_cache=True).past_key_values
    measure_served.check_crop("t", model, tokens[:, 20:], cache)
    after = model(tokens[:, 20:24], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(after, model(tokens[:, :24]).logits[:, 20:], rtol=1e-4, atol=1e-5)
    assert set(run_script(monkeypatch, model)) == CELLS


@pytest.mark.parametrize("config, name", [
    (transformers.Qwen3NextConfig(layer_types=["linear_attention", "full_attention"], num_experts=4, head_dim=8,
                                  num_experts_per_tok=2, moe_intermediate_size=16, **SIZES),
     "DynamicLayer, LinearAttentionLayer"),
    (transformers.MambaConfig(vocab_size=small_models.VOCABULARY, hidden_size=32, num_hidden_layers=2),
     "NoneType|Linear")],
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
