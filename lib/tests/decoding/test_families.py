"""Models of today, small and random: greedy text with drafts is transformers' own, by eager attention, for windows,
sinks, capped logits, experts, and layers with a state.
"""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lib.attention.registration import hosting_trees, register, takes_chains
from lib.decoding.checks import checkable
from lib.decoding.loop import generate
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.forward.passes import forward_pass
from lib.forward.prefill import prefill
from lib.kernels import build
from lib.models.checks import PairError, check_verifies
from lib.models.recurrent import read_in_steps
from lib.tests.live import continuation, decode
from lib.tests.small_models import VOCABULARY, prompts
from lib.trees import named

WINDOW, WRITTEN = 6, 24
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, bos_token_id=1, eos_token_id=None,
             pad_token_id=None)
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
MIXED, STATE = ["sliding_attention", "full_attention"] * 2, ["linear_attention", "full_attention"] * 2
GATED = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
             layer_types=STATE)
CONFIGS = {model_type: AutoConfig.for_model(model_type, **SIZES | settings) for model_type, settings in {
    "gemma2": dict(sliding_window=WINDOW, query_pre_attn_scalar=8, attn_logit_softcapping=3.0,
                   final_logit_softcapping=5.0, layer_types=MIXED),
    "gemma3_text": dict(sliding_window=WINDOW, query_pre_attn_scalar=8, layer_types=MIXED),
    "mistral": dict(sliding_window=WINDOW),
    "phi3": dict(sliding_window=WINDOW),
    "gpt_oss": dict(**EXPERTS, sliding_window=WINDOW, layer_types=MIXED),
    "qwen3_next": dict(**GATED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                       shared_expert_intermediate_size=16),
    "qwen3_5_text": GATED,
    "lfm2": dict(layer_types=["conv", "conv", "full_attention", "conv"]),
    "granitemoehybrid": dict(**EXPERTS, layer_types=STATE, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8,
                             mamba_chunk_size=8, shared_intermediate_size=16),
    "mamba2": dict(head_dim=16, num_heads=4, state_size=8, n_groups=1, chunk_size=8),
}.items()}
SINGLE = {"gpt_oss", "qwen3_next", "granitemoehybrid"}  # whose products of experts know no float64


def small(config, dtype=torch.float64, seed=0):
    """A random model by eager attention, whose weights are large enough for texts that vary."""
    register()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 or "sinks" in name:
                weight.copy_(torch.randn_like(weight) * 1.3 / weight.shape[-1] ** 0.5)
    return model


def hosting(model):
    read_in_steps(model)
    return hosting_trees(model)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_text_is_the_model_s_own(name):
    """Trees of two drafters, ragged rows, texts of several windows; chains where the target takes chains."""
    config, dtype = CONFIGS[name], torch.float32 if name in SINGLE else torch.float64
    texts, model = prompts(1, (3, 11, 25, 25)), small(config, dtype)
    expected = [continuation(model, text, WRITTEN) for text in texts]
    model, drafter = hosting(model), hosting(small(config, dtype))
    with torch.no_grad():
        for weight in drafter.parameters():
            weight.add_(0.1 * weight.std(correction=0) * torch.randn_like(weight))
    shapes = checkable(model, ["chain:3", "chain:5"] if takes_chains(config) else ["kary:2@6", "independent:2@7"])
    for drafter, shape in ((LanguageModelDrafter(drafter), shapes[0]), (LookupDrafter(), shapes[1])):
        done = decode(model, drafter, texts, shape=shape, max_new_tokens=WRITTEN)
        assert done.new_tokens == expected and any(record.accepted for record in done.rounds)


def test_a_target_with_states_refuses_trees_and_says_so():
    model = hosting(small(CONFIGS["lfm2"]))
    for shape in ("kary:2@6", "dyspec@4"):
        with pytest.raises(ValueError, match="takes chains.*'chain:4'"):
            generate(model, LookupDrafter(), torch.tensor([[3, 4]]), shape=shape)
    assert checkable(model, ["kary:2@6", "chain:2", "dyspec@4"]) == ["chain:2"] and checkable(model, []) == []
    assert checkable(model, ["star:3"]) == ["chain:4"]


def test_a_model_that_computes_otherwise_is_refused_by_name():
    for name in ("gemma2", "lfm2"):
        check_verifies("folder", hosting(small(CONFIGS[name])))
    with pytest.raises(PairError, match="folder .nemotron. cannot verify a draft"):
        check_verifies("folder", hosting(small(AutoConfig.for_model("nemotron", **SIZES))))
    llama4 = AutoConfig.for_model("llama4_text", **SIZES, **EXPERTS, intermediate_size_mlp=48, attention_chunk_size=5)
    with pytest.raises(ValueError, match="Llama4ForCausalLM cannot verify a tree: it attends in chunks"):
        hosting(small(llama4))


@pytest.mark.skipif(bool(build.unavailable()), reason="no kernels here")
@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "mistral"])
def test_windows_caps_and_norms_are_those_of_the_model_s_own_attention(name):
    """Texts shorter and longer than the window, ragged rows, blocks of text; pending nodes, two commits."""
    model, texts = small(CONFIGS[name], torch.float32), prompts(4, (3, 17, 600))
    tree, sizes = named("kary:2@6"), dict(rtol=1e-3, atol=1e-4)
    depth, mask = torch.tensor(tree.depth), torch.tensor(tree.mask)
    leaf = torch.cat([mask[-1:], torch.ones(1, 1, dtype=torch.bool)], 1)
    tokens = torch.randint(1, VOCABULARY, (2, 3, tree.size), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = torch.stack([model(text[None]).logits[0, -1] for text in texts])
        runs = [forward_pass(hosting(model), kind) for kind in ("native", "layers")]
        prefilled = [prefill(run, texts) for run in runs]
        assert runs[1].reads_blocks
        for outputs in prefilled:
            torch.testing.assert_close(outputs.logits, expected, **sizes)
        for block in tokens:
            for nodes in ((block, depth, mask), (block[:, :1], depth[-1:] + 1, leaf)):
                torch.testing.assert_close(*(run(*nodes, outputs.cache).logits
                                             for run, outputs in zip(runs, prefilled)), **sizes)
            for outputs in prefilled:
                outputs.cache.commit([[0, 1], [0, 2, 5], [0]])
