"""Fused blocks say what the model says within rounding, follow its weights, and leave everything else to it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import lib
from lib import attention
from lib.attention import tree_forward
from lib.decoding import generate, in_batches
from lib.drafters import make
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import head_of
from lib.kernels.products import MOST_ROWS, weights_refusal
from lib.models.cache import TreeCache
from lib.models.compiled import CompiledBlocks
from lib.models.fused import FusedBlocks, copied_bytes, fused, native_refusal, output_layer, refusal
from lib.models.joined_blocks import JoinedBlocks
from lib.models.native_blocks import NativeBlocks
from lib.models.quantize import quantize_int8
from lib.tests import small_heads, small_models
from lib.trees import shapes

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0)
SCALED = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 10_000.0}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama, tied, biased": LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama, scaled rotation": LlamaConfig(**SIZES, rope_parameters=SCALED),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
}
TREE = shapes.parse("expansion:2,2,1")
WITHIN = {torch.float32: 2e-6, torch.bfloat16: 3e-2}  # of the largest logit


@pytest.fixture(params=["native", "joined"])
def kernels(request, monkeypatch):
    """Blocks in C++ where this machine runs them, and those of PyTorch's operators."""
    if request.param == "joined":
        monkeypatch.setattr("lib.kernels.products.weights_refusal", lambda weights: "not now")
    elif reason := weights_refusal([torch.zeros(8, 8)]):
        pytest.skip(reason)
    return {"native": NativeBlocks, "joined": JoinedBlocks}[request.param]


def made(config, dtype=torch.float32, seed: int = 0):
    attention.register()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="tree", dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms too, which begin as zeros and ones
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@torch.inference_mode()
def block(model, stand_in, lengths=(5, 9), **asked):
    """A tree's forward behind right-padded prompts of these lengths, by the stand-in."""
    tokens = torch.randint(1, 50, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    cache = TreeCache()
    tree_forward(model, tokens, torch.arange(max(lengths)), None, cache)
    cache.set_lengths(torch.tensor(lengths))
    nodes = torch.randint(1, 50, (len(lengths), TREE.size), generator=torch.Generator().manual_seed(2))
    out = tree_forward(stand_in, nodes, torch.tensor(TREE.depth), torch.tensor(TREE.mask), cache, **asked)
    return out, cache


@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("lengths", [(7,), (5, 9), (6, 6, 6)], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_block_says_what_the_model_says(config, lengths, dtype, kernels):
    model = made(config, dtype)
    if kernels is NativeBlocks and (reason := weights_refusal([torch.zeros(8, 8, dtype=dtype)])):
        pytest.skip(reason)
    assert isinstance(fused(model).blocks, kernels)
    (told, kept), (said, cache) = block(model, fused(model), lengths), block(model, model, lengths)
    largest = said.logits.float().abs().max()
    assert (told.logits.float() - said.logits.float()).abs().max() <= WITHIN[dtype] * largest
    for layer, (own, other) in enumerate(zip(kept.layers, cache.layers)):
        for row, length in enumerate(lengths):  # the next block reads what this one wrote
            torch.testing.assert_close(own.keys[row, :, : length + TREE.size], other.keys[row, :, : length + TREE.size],
                                       atol=5e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-4, msg=f"layer {layer}")


@pytest.mark.parametrize("keep", [1, 2, torch.tensor([0, 3]), torch.tensor([3, 0, *range(TREE.size)])], ids=str)
def test_only_the_asked_logits_are_made(keep, kernels):
    model = made(CONFIGS["llama"])
    told, said = (block(model, each, logits_to_keep=keep)[0].logits for each in (fused(model), model))
    torch.testing.assert_close(told, said, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_tree_without_a_prefix_says_what_the_model_says(kernels):
    model = made(CONFIGS["llama"])
    nodes = torch.arange(1, TREE.size + 1)[None]
    told, said = (tree_forward(each, nodes, torch.tensor(TREE.depth), torch.tensor(TREE.mask), TreeCache()).logits
                  for each in (fused(model), model))
    torch.testing.assert_close(told, said, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("longest", [11, MOST_ROWS + 1])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=["any", "in pairs"])
def test_prompts_are_read_as_the_model_reads_them(kernels, longest, weights):
    model = made(LlamaConfig(**SIZES | {"max_position_embeddings": 1024})).to(weights).float()
    tokens = torch.randint(1, 50, (2, longest), generator=torch.Generator().manual_seed(1))
    keep, depth = torch.tensor([3, longest - 1]), torch.arange(longest)
    caches = TreeCache(), TreeCache()
    told, said = (tree_forward(each, tokens, depth, None, cache, logits_to_keep=keep).logits
                  for each, cache in zip((fused(model), model), caches))
    torch.testing.assert_close(told, said, atol=1e-5, rtol=1e-4)
    for own, other in zip(*(cache.layers for cache in caches), strict=True):
        torch.testing.assert_close(own.keys[:, :, :longest], other.keys[:, :, :longest], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("unknown", [-1, 50])
def test_a_token_that_the_embedding_lacks_is_refused(kernels, unknown):
    model = made(CONFIGS["llama"])
    tokens = torch.full((1, 3), 7)
    tokens[0, 1] = unknown
    with torch.inference_mode(), pytest.raises(IndexError):
        tree_forward(fused(model), tokens, torch.arange(3), None, TreeCache())


@torch.inference_mode()
@pytest.mark.parametrize("depth, mask", [((4,), (3, 3)), ((3,), (3, 4)), ((3,), (2, 3))], ids=str)
def test_positions_and_masks_that_do_not_fit_are_refused(depth, mask):
    model = made(CONFIGS["llama"])
    if reason := weights_refusal([model.lm_head.weight]):
        pytest.skip(reason)
    with pytest.raises(ValueError, match="3 nodes after 0 pending"):
        tree_forward(fused(model), torch.ones(1, 3, dtype=torch.long), torch.zeros(depth, dtype=torch.long),
                     torch.ones(mask, dtype=torch.bool), TreeCache())


def test_hidden_states_stand_in_transformers_order(kernels):
    model = made(CONFIGS["qwen3"])
    told, said = (block(model, each, output_hidden_states=True)[0] for each in (fused(model), model))
    assert len(told.hidden_states) == len(said.hidden_states) == 3
    for own, other in zip(told.hidden_states, said.hidden_states):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(told.logits, said.logits, atol=1e-5, rtol=1e-4)


def test_it_follows_weights_that_change(kernels):
    model = made(CONFIGS["llama"])
    block(model, fused(model))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    told, said = (block(model, each)[0].logits for each in (fused(model), model))
    torch.testing.assert_close(told, said, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", ["native", "joined", "compiled"])
def test_each_implementation_can_be_asked_for_by_name(how):
    model = made(CONFIGS["llama"])
    if how == "native" and (reason := native_refusal(model)):
        pytest.skip(reason)
    options = {"compiler": lambda function: function} if how == "compiled" else {}
    stand_in = fused(model, how, **options)
    assert isinstance(getattr(stand_in, "blocks", stand_in),
                      {"native": NativeBlocks, "joined": JoinedBlocks, "compiled": CompiledBlocks}[how])
    told, said = (block(model, each)[0].logits for each in (stand_in, model))
    torch.testing.assert_close(told, said, atol=1e-5, rtol=1e-4)


def test_an_implementation_that_cannot_run_is_refused_with_the_reason(monkeypatch):
    with pytest.raises(ValueError, match="how is 'fast'; choose one of 'native', 'joined', 'compiled'"):
        fused(made(CONFIGS["llama"]), "fast")
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot run as 'joined': its weights are torch.float64"):
        fused(small_models.llama(0), "joined")
    monkeypatch.setattr("lib.kernels.products.weights_refusal", lambda weights: "not now")
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot run as 'native': not now; leave `how` out"):
        fused(made(CONFIGS["llama"]), "native")


LOADS = """
import sys, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from lib.models.fused import fused
config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
fused(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), sys.argv[1])
print(*(name for name in ("native", "joined") if f"lib.models.{name}_blocks" in sys.modules))
"""


@pytest.mark.parametrize("how", ["native", "joined"])
def test_an_implementation_loads_no_other(how):
    if how == "native" and (reason := native_refusal(made(CONFIGS["llama"]))):
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-c", LOADS, how], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": str(Path(lib.__file__).parents[1])})
    assert done.stdout.split() == [how], done.stderr


def test_kernels_are_made_once(kernels):
    model = made(CONFIGS["llama"])
    assert fused(model).blocks is fused(model).blocks


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_weights_that_bfloat16_holds_are_read_in_pairs(config, monkeypatch):
    whole, exact = made(config), made(config)
    if reason := weights_refusal([exact.lm_head.weight]):
        pytest.skip(reason)
    assert copied_bytes(whole) == 0 and isinstance(fused(whole).blocks, NativeBlocks)
    for model in (whole, exact):
        model.bfloat16().float()
    assert 0 < copied_bytes(exact) <= sum(weight.nbytes for weight in exact.parameters())
    monkeypatch.setattr("lib.kernels.products.MOST_COPIED", 0.0)
    assert copied_bytes(whole) == 0
    with torch.inference_mode():
        (said, _), (told, _) = (block(whole, fused(model)) for model in (whole, exact))
    assert (said.logits - told.logits).abs().max() <= WITHIN[torch.float32] * said.logits.abs().max()


def test_a_model_that_would_not_fit_twice_runs_as_it_is(monkeypatch):
    monkeypatch.setattr("lib.kernels.products.weights_refusal", lambda weights: "not now")
    small, large = made(CONFIGS["llama"]), made(CONFIGS["llama"], seed=1)
    assert copied_bytes(small) == sum(layer.weight.nbytes for layer in small.modules() if isinstance(layer, nn.Linear))
    assert isinstance(fused(small), FusedBlocks)
    ends = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    joint = [name for name, _ in small.named_modules() if name.endswith(ends)]
    half = made(CONFIGS["llama"], torch.float16)  # which no kernel packs: only what is joined is copied
    assert copied_bytes(half) == sum(half.get_submodule(name).weight.nbytes for name in joint)
    monkeypatch.setattr("lib.kernels.products.MOST_COPIED", 0.0)
    assert fused(large) is large and output_layer(large) is large.lm_head and copied_bytes(large) == 0
    assert isinstance(fused(small), FusedBlocks)  # its copies are there already


def test_int8_layers_are_the_same_fused(kernels):
    model = made(CONFIGS["qwen2"])
    quantize_int8(model)
    assert isinstance(fused(model).blocks, NativeBlocks if native_refusal(model) is None else JoinedBlocks)
    told, said = (block(model, each)[0].logits for each in (fused(model), model))
    torch.testing.assert_close(told, said, atol=1e-4, rtol=1e-3)


def test_gate_and_up_in_different_numbers_of_16_bits_are_the_model_s_own():
    """One product computes both, so that they must lie in panels of one form."""
    model = made(CONFIGS["llama"])
    for layer in model.model.layers:
        for part, dtype in ((layer.mlp.gate_proj, torch.bfloat16), (layer.mlp.up_proj, torch.float16)):
            part.weight.data = part.weight.data.to(dtype).float()
    told, said = (block(model, each)[0].logits for each in (fused(model), model))
    torch.testing.assert_close(told, said, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("model, said", [
    (lambda: made(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)), "GPT2LMHeadModel"),
    (lambda: small_models.llama(0), "float64"),
    (lambda: made(LlamaConfig(**SIZES, hidden_act="gelu")), "gelu"),
    (lambda: made(LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})),
     "dynamic"),
])
def test_what_cannot_be_fused_runs_as_it_is(model, said):
    model = model()
    assert said in refusal(model)
    assert fused(model) is model


def test_greedy_text_of_a_batch_is_the_plain_models(kernels):
    """Float32: fused decoding against float64, which runs as transformers wrote it."""
    target = small_models.llama(3, dtype=torch.float32, hidden=64)
    drafter = small_models.related(target, 4, noise=0.2)
    ids, mask = next(in_batches(small_models.prompts(5, (4, 9, 17)), 3))
    exact = [generate(each.to(dtype), LanguageModelDrafter(drafter.to(dtype)), ids, attention_mask=mask,
                      shape="kary:2@14", max_new_tokens=40).new_tokens
             for each, dtype in ((target, torch.float32), (target, torch.float64))]
    assert exact[0] == exact[1]


@pytest.mark.parametrize("shape, rule", [("kary:2@14", "greedy"), ("dyspec@8", "greedy"), ("chain:3", "naive")])
@pytest.mark.parametrize("kind", ["model", "early_exit:1", "eagle3", "combined:behind=eagle:enough=2"])
def test_loops_in_float64_are_the_same_over_fused_blocks(kind, shape, rule, monkeypatch):
    """Batches of different lengths, rows that end at different rounds, hidden states, growth, sampling: with float64
    let in, where rounding cannot decide.
    """
    target = small_models.llama(3, layers=3)
    folder = small_heads.folder(head_of(kind) or "none", target)
    pair = SimpleNamespace(target=target, draft_model=small_models.related(target, 4, noise=0.2))
    options = {} if folder is None else {"folder": folder}
    if "combined" in kind and "@8" in shape:
        pytest.skip("look-up fills static shapes alone")
    ids, mask = next(in_batches(small_models.prompts(5, (4, 9, 17)), 3))
    told = []
    for dtypes in ((), (torch.float64,)):
        monkeypatch.setattr("lib.models.fused.DTYPES", dtypes)
        done = generate(target, make(kind, pair, **options), ids, attention_mask=mask, shape=shape, rule=rule, eos_token_id=7,
                        temperature=0.0 if rule == "greedy" else 1.0, max_new_tokens=25,
                        generator=torch.Generator().manual_seed(1))
        told.append((done.new_tokens, [(found.row, found.accepted) for found in done.rounds]))
    assert told[0] == told[1]
