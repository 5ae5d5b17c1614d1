"""Weights as engines read them: EAGLE-3 heads that draft the same, GGUF files that hold the same model."""

import json
from types import SimpleNamespace

import gguf
import pytest
import torch
from safetensors.torch import load_file

from lib.drafters import heads, make
from lib.engines import exports
from lib.models.load import load_pair
from lib.tests import small_heads, small_models, tiny_gguf
from lib.training import heads as training
from lib.trees import named

TARGET = small_models.llama(3, layers=8)
PROMPTS = small_models.prompts(5, (3, 7))
V, H, DRAFTED, COUNTED = small_models.VOCABULARY, 32, 10, "eagle_aux_hidden_state_layer_ids"
# As vLLM 0.32 (llama_eagle3.py) and llama.cpp (conversion/llama.py) read them: two query heads and a key head of 8.
SHAPES = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "midlayer.input_layernorm.weight": (H,),
          "midlayer.hidden_norm.weight": (H,), "midlayer.post_attention_layernorm.weight": (H,),
          "midlayer.self_attn.q_proj.weight": (16, 2 * H), "midlayer.self_attn.k_proj.weight": (8, 2 * H),
          "midlayer.self_attn.v_proj.weight": (8, 2 * H), "midlayer.self_attn.o_proj.weight": (H, 16),
          "midlayer.mlp.gate_proj.weight": (H, H), "midlayer.mlp.up_proj.weight": (H, H),
          "midlayer.mlp.down_proj.weight": (H, H)}


@torch.no_grad()
def drafts(folder):
    drafter = make("eagle3", SimpleNamespace(target=TARGET), {"folder": str(folder)})
    drafted = []
    for prompt in PROMPTS:
        drafter.start([prompt])
        drafter.commit([[]], [3], TARGET(prompt[None], output_hidden_states=True))
        drafted += [draft.tokens.tolist() for draft in drafter.propose(named("chain:4"), None)]
    return drafted


@pytest.mark.parametrize("drafted", [None, DRAFTED])
def test_an_exported_head_has_the_layout_of_engines_and_drafts_the_same(drafted, tmp_path):
    ours = tmp_path / "ours"
    heads.save(small_heads.head("eagle3", TARGET, draft_vocab_size=drafted), ours)
    into = exports.write_head(ours, TARGET, tmp_path / "exported")
    tensors, config = load_file(into / "model.safetensors"), json.loads((into / "config.json").read_text())
    maps = {"d2t": (DRAFTED,), "t2d": (V,)} if drafted else {}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == SHAPES | maps | {
        "lm_head.weight": (drafted or V, H)}
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    assert config[COUNTED] == config["eagle_config"][COUNTED] == [2, 4, 5] and "kind" not in config
    assert config["draft_vocab_size"] == (drafted or V) and config["norm_before_residual"] is False
    assert drafts(into) == drafts(ours)
    if drafted:
        tokens = torch.arange(DRAFTED) + tensors["d2t"]
        assert torch.equal(tensors["lm_head.weight"], TARGET.lm_head.weight[tokens])
        assert torch.equal(tensors["t2d"].nonzero().flatten(), tokens)


@pytest.mark.parametrize("features", [[4, 2, 5], [2, 2, 5]])
def test_features_that_engines_do_not_hand_over_are_refused(features, tmp_path):
    """Engines sort features and drop repeated ones."""
    heads.save(small_heads.head("eagle3", TARGET, feature_layers=features), tmp_path)
    with pytest.raises(ValueError, match="of a target of 8 layers; engines hand over different ones below 8"):
        exports.write_head(tmp_path, TARGET, tmp_path / "exported")


@pytest.mark.parametrize("layers, read", [(30, [2, 15, 27]), (7, [2, 3, 4]), (5, [2, 3, 4]), (3, [0, 1, 2]), (1, [0])])
def test_new_heads_read_hidden_states_before_the_final_norm(layers, read):
    assert training.feature_layers(layers) == read


def test_files_hold_the_same_model_in_another_format(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(exports, "WEIGHTS", tmp_path)
    source = tiny_gguf.write(tmp_path / "m.gguf")
    pair = load_pair(str(source), "float32")
    (model := pair.target).save_pretrained(tmp_path / "draft")
    drafting = SimpleNamespace(draft_model=SimpleNamespace(name_or_path=str(tmp_path / "draft")), target=model)
    for made, kind in ((exports.target_file(source, "float32"), 0),
                       (exports.target_file(source, "bfloat16"), 32),
                       (exports.drafter_file(drafting, source), 0)):
        fields, again = gguf.GGUFReader(made).fields, load_pair(str(made), "float32").target.state_dict()
        assert fields["general.file_type"].contents() == kind
        assert fields["tokenizer.ggml.merges"].contents() == tiny_gguf.MERGES
        assert all(torch.equal(values, again[name]) for name, values in model.state_dict().items())
