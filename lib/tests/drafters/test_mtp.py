"""A target's multi-token-prediction modules, from small folders in the two layouts, against transformers' own."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, Qwen3NextConfig, modeling_layers
from transformers.generation import candidate_generator

from lib.attention.registration import hosting_trees
from lib.drafters.mtp import MtpDrafter
from lib.models.load import Pair
from lib.models.recurrent import read_in_steps
from lib.tests import live
from lib.tests.small_models import llama, prompts
from lib.trees import named

if not hasattr(modeling_layers, "MtpModel"):
    pytest.skip("this version of transformers has no such modules", allow_module_level=True)

V, NEW = 24, 20
SIZES = dict(vocab_size=V, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256, eos_token_id=None)
DEEPSEEK = DeepseekV3Config(
    **SIZES, hidden_size=16, intermediate_size=24, moe_intermediate_size=8, num_hidden_layers=2, n_routed_experts=4,
    num_experts_per_tok=2, n_group=1, topk_group=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
    qk_nope_head_dim=4, v_head_dim=4, first_k_dense_replace=1, num_mtp_layers=2)
QWEN = Qwen3NextConfig(
    **SIZES, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8, num_experts=4,
    num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_num_value_heads=4,
    linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_mtp_layers=1,
    layer_types=["linear_attention", "full_attention"], mtp_layer_types=["full_attention"])
OF_QWEN = {"eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden",
           "post_norm": "mtp.norm"}


def in_layout(name: str, config) -> str:
    """A module's tensor as files of the target name it."""
    layer, part, rest = name.split(".", 2)
    if config is QWEN:
        return f"mtp.layers.{layer}.{rest}" if part == "mtp_block" else f"{OF_QWEN[part]}.{rest}"
    inner = {"mtp_block": rest, "post_norm": f"shared_head.norm.{rest}"}.get(part, f"{part}.{rest}")
    return f"model.layers.{config.num_hidden_layers + int(layer)}.{inner}"


def target_of(folder, config):
    """A random target with its modules, saved and read again."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    modules = modeling_layers.MtpModel(model, config.num_mtp_layers).layers
    with torch.no_grad():
        for weight in (*model.parameters(), *modules.parameters()):
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * 1.3 / weight.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {in_layout(name, config): tensor.clone() for name, tensor in modules.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if config is DEEPSEEK:  # transformers looks for the module of the published size, layer 61
        model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{number}\." for number in (2, 3)]
    return model


def drafter(model):
    read_in_steps(hosting_trees(model))
    return MtpDrafter.of(Pair("t", model, None, None, "t", "none"))


def ours(model, texts, shape):
    """The greedy text of prompts with the modules' drafts, and what was drafted for each row."""
    drafted = [[] for _ in texts]
    done = live.decode(model, drafter(model), texts, shape=shape, max_new_tokens=NEW, observe=lambda rows, drafts, _: [
        drafted[row].append(draft) for row, draft in zip(rows, drafts)])
    return done, drafted


def test_drafts_of_two_modules_are_those_of_transformers_generator(tmp_path, monkeypatch):
    model, texts, candidates = target_of(tmp_path, DEEPSEEK), prompts(1, (9, 4)), []
    plain = candidate_generator.MTPCandidateGenerator.get_candidates

    def noted(self, input_ids, *args, **kwargs):
        made = plain(self, input_ids, *args, **kwargs)
        if made[0].shape[1] > input_ids.shape[1]:
            candidates[-1].append(made[0][0, input_ids.shape[1] - 1 :].tolist())
        return made

    monkeypatch.setattr(candidate_generator.MTPCandidateGenerator, "get_candidates", noted)
    expected = []
    for text in texts:
        candidates.append([])
        expected.append(live.continuation(model, text, NEW, use_mtp=True))
    done, drafted = ours(model, texts, "chain:2")
    assert done.new_tokens == expected
    for row, theirs in zip(drafted, candidates):
        assert [draft.token_list for draft in row][: len(theirs)] == theirs and len(theirs) > 3
    done, drafted = ours(model, texts, "kary:2@6")
    assert done.new_tokens == expected and max(draft.tree.size for row in drafted for draft in row) == 5


def test_a_module_of_a_target_with_states_drafts_as_if_it_read_the_text_anew(tmp_path):
    """Also after rounds in which it drafted nothing."""
    model, (text,) = target_of(tmp_path, QWEN), prompts(2, (7,))
    expected = live.continuation(model, text, NEW)
    done, (drafted,) = ours(model, [text], "chain:1")
    assert done.new_tokens == [expected]
    module = modeling_layers.MtpModel.from_pretrained(model)
    for record, draft in zip(done.rounds, drafted):
        whole = torch.cat([text, torch.tensor(expected[: record.position])])
        with torch.no_grad():
            last = model(whole[None, :-1], output_hidden_states=True).hidden_states[-1]
            tokens, _, _ = module(input_ids=whole[None, 1:], last_hidden_states=last, attention_mask=None,
                                  position_ids=torch.arange(1, len(whole))[None], mtp_cache=None)
        assert draft.token_list == [int(whole[-1]), int(tokens)]
    aside = drafter(model)
    aside.start([text])
    for first, end in itertools.pairwise([0, *range(len(text), len(whole))]):
        aside.commit([[]], [int(whole[end])], SimpleNamespace(hidden_states=[last[:, first:end]]))
    assert aside.propose(named("chain:1"), None)[0].token_list == draft.token_list


def test_targets_without_modules_are_refused_by_name(tmp_path):
    assert "LlamaForCausalLM has no multi-token-prediction module" in MtpDrafter.refusal(llama(0))
    model = target_of(tmp_path, QWEN)
    tensors = {name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if "mtp" not in name}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "have no multi-token-prediction weights" in MtpDrafter.refusal(model)
