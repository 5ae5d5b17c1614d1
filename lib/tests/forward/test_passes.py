"""Every forward pass gives what transformers' layers give within rounding, and follows the model's weights."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from lib.attention import registration
from lib.decoding import generate, in_batches
from lib.drafters import make
from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.packed import quantize_int8
from lib.forward.passes import LAYERS, NATIVE, forward_pass, native_blocks
from lib.kernels import build
from lib.kernels.build import CannotServe
from lib.kernels.products import MOST_ROWS
from lib.models.cache import TreeCache
from lib.tests import small_models
from lib.trees import named

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=0, eos_token_id=0)
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
TREE = named("expansion:2,2,1")
DEPTH, MASK = torch.tensor(TREE.depth), torch.tensor(TREE.mask)
WITHIN = {torch.float32: 2e-6, torch.bfloat16: 3e-2}  # of the largest logit
NO_KERNELS = build.unavailable()
needs_kernels = pytest.mark.skipif(NO_KERNELS is not None, reason=str(NO_KERNELS))


def without_kernels(monkeypatch):
    """As on a machine without a compiler."""
    def library(*sources):
        raise CannotServe("not now")

    monkeypatch.setattr("lib.kernels.build.library", library)


def made(config=CONFIGS["llama"], dtype=torch.float32, seed: int = 0):
    registration.register()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="tree", dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms too, which begin as zeros and ones
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@torch.inference_mode()
def block(model, name: str, lengths=(5, 9), **asked):
    """The outputs of a tree's forward pass after right-padded prompts of these lengths, and the cache."""
    tokens = torch.randint(1, 50, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    cache = TreeCache()
    forward_pass(model, LAYERS)(tokens, torch.arange(max(lengths)), None, cache)
    cache.set_lengths(torch.tensor(lengths))
    nodes = torch.randint(1, 50, (len(lengths), TREE.size), generator=torch.Generator().manual_seed(2))
    return forward_pass(model, name)(nodes, DEPTH, MASK, cache, **asked), cache


def assert_native_is_layers(model, atol: float = 1e-5, rtol: float = 1e-4, **settings):
    (ours, _), (theirs, _) = (block(model, name, **settings) for name in (NATIVE, LAYERS))
    torch.testing.assert_close(ours.logits, theirs.logits, atol=atol, rtol=rtol)
    return ours, theirs


@needs_kernels
@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("lengths", [(7,), (5, 9), (6, 6, 6)], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_block_gives_what_the_layers_give(config, lengths, dtype):
    model = made(config, dtype)
    (ours, filled), (theirs, cache) = (block(model, name, lengths) for name in (NATIVE, LAYERS))
    largest = theirs.logits.float().abs().max()
    assert (ours.logits.float() - theirs.logits.float()).abs().max() <= WITHIN[dtype] * largest
    for layer, (our_layer, their_layer) in enumerate(zip(filled.layers, cache.layers)):
        for row, length in enumerate(lengths):  # the next block reads what this one wrote
            torch.testing.assert_close(*(kept.keys[row, :, : length + TREE.size] for kept in (our_layer, their_layer)),
                                       atol=5e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-4, msg=f"layer {layer}")


@needs_kernels
@pytest.mark.parametrize("keep", [0, 1, 2, torch.tensor([0, 3]), torch.tensor([3, 0, *range(TREE.size)])], ids=str)
def test_logits_and_hidden_states_stand_in_transformers_order(keep):
    ours, theirs = assert_native_is_layers(made(CONFIGS["qwen3"]), logits_to_keep=keep, output_hidden_states=True)
    for our_states, their_states in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(our_states, their_states, atol=1e-5, rtol=1e-4)


@needs_kernels
@torch.inference_mode()
@pytest.mark.parametrize("longest", [11, MOST_ROWS + 1])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=["any", "in pairs"])
def test_prompts_and_trees_without_a_prefix_are_read_as_the_layers_read_them(longest, weights):
    model = made().to(weights).float()
    prompts = torch.randint(1, 50, (2, longest), generator=torch.Generator().manual_seed(1))
    for tokens, depth, mask in ((prompts, torch.arange(longest), None), (prompts[:, : TREE.size], DEPTH, MASK)):
        keep, caches = torch.tensor([3, tokens.shape[1] - 1]), (TreeCache(), TreeCache())
        ours, theirs = (forward_pass(model, name)(tokens, depth, mask, cache, logits_to_keep=keep).logits
                        for name, cache in zip((NATIVE, LAYERS), caches))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
        for layers in zip(*(cache.layers for cache in caches), strict=True):
            torch.testing.assert_close(*(layer.keys[:, :, : tokens.shape[1]] for layer in layers), atol=1e-5, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("name", [pytest.param(NATIVE, marks=needs_kernels), LAYERS])
@pytest.mark.parametrize("unknown", [-1, 50])
def test_a_token_that_the_embedding_lacks_is_refused(name, unknown):
    with pytest.raises(IndexError):
        forward_pass(made(), name)(torch.tensor([[7, unknown, 7]]), torch.arange(3), None, TreeCache())


@needs_kernels
@torch.inference_mode()
@pytest.mark.parametrize("depth, mask", [((4,), (3, 3)), ((3,), (3, 4)), ((3,), (2, 3))], ids=str)
def test_positions_and_masks_that_do_not_fit_are_refused(depth, mask):
    with pytest.raises(ValueError, match="3 nodes after 0 pending"):
        forward_pass(made(), NATIVE)(torch.ones(1, 3, dtype=torch.long), torch.zeros(depth, dtype=torch.long),
                                     torch.ones(mask, dtype=torch.bool), TreeCache())


@needs_kernels
def test_kernels_are_made_again_when_weights_change():
    model = made()
    assert forward_pass(model, NATIVE).blocks is forward_pass(model).blocks
    block(model, NATIVE)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    assert_native_is_layers(model)


def test_names_that_cannot_run_are_refused_with_the_reason(monkeypatch):
    for unknown in ("fast", "graphs", "graphs:compiled"):
        with pytest.raises(ValueError, match=f"forward is '{unknown}'; choose one of layers, native, or 'auto'"):
            forward_pass(made(), unknown)
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot run as 'native': its weights are torch.float64"):
        forward_pass(small_models.llama(0), NATIVE)
    without_kernels(monkeypatch)
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot run as 'native': not now; leave `forward` out"):
        generate(made(), make("lookup", None), torch.ones(1, 3, dtype=torch.long), shape="chain:1", forward=NATIVE)


@needs_kernels
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_weights_that_bfloat16_holds_are_read_in_pairs(config, monkeypatch):
    whole, exact = made(config), made(config)
    assert forward_pass(whole).blocks.copied_bytes == 0
    for model in (whole, exact):
        model.bfloat16().float()
    assert 0 < forward_pass(exact).blocks.copied_bytes <= sum(weight.nbytes for weight in exact.parameters())
    monkeypatch.setattr("lib.kernels.products.MOST_COPIED", 0.0)
    assert forward_pass(whole).blocks.copied_bytes == 0
    (theirs, _), (ours, _) = (block(model, NATIVE) for model in (whole, exact))
    assert (theirs.logits - ours.logits).abs().max() <= WITHIN[torch.float32] * theirs.logits.abs().max()


@needs_kernels
def test_int8_layers_are_the_same():
    model = made(CONFIGS["qwen2"])
    quantize_int8(model)
    assert_native_is_layers(model, atol=1e-4, rtol=1e-3)


@needs_kernels
def test_gate_and_up_in_different_numbers_of_16_bits_are_the_model_s_own():
    """One product computes both, so that they must lie in panels of one form."""
    model = made()
    for layer in model.model.layers:
        for part, dtype in ((layer.mlp.gate_proj, torch.bfloat16), (layer.mlp.up_proj, torch.float16)):
            part.weight.data = part.weight.data.to(dtype).float()
    assert_native_is_layers(model, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("model, reason", [
    (lambda: made(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)), "GPT2LMHeadModel"),
    (lambda: small_models.llama(0), "float64"),
    (lambda: made(LlamaConfig(**SIZES, hidden_act="gelu")), "GELU"),
    (lambda: made(LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})),
     "dynamic"),
])
def test_what_the_faster_ones_do_not_serve_runs_in_layers(model, reason):
    model = model()
    with pytest.raises(CannotServe, match=reason):
        native_blocks(model)
    assert forward_pass(model).name == LAYERS


@pytest.mark.parametrize("forward", [NATIVE, LAYERS, "auto"])
def test_greedy_text_of_a_batch_is_that_of_the_layers(forward):
    """Float32 by each forward pass against float64, which runs as transformers wrote it."""
    if forward == NATIVE and NO_KERNELS:
        pytest.skip(NO_KERNELS)
    target = small_models.llama(3, dtype=torch.float32, hidden=64)
    drafter = small_models.related(target, 4, noise=0.2)
    ids, mask = next(in_batches(small_models.prompts(5, (4, 9, 17)), 3))
    settings = dict(attention_mask=mask, shape="kary:2@14", max_new_tokens=40)
    done = generate(target, LanguageModelDrafter(drafter), ids, forward=forward, **settings)
    exact = generate(target.double(), LanguageModelDrafter(drafter.double()), ids, **settings)
    assert done.new_tokens == exact.new_tokens and exact.forward == LAYERS
    assert done.forward == (forward if forward != "auto" else LAYERS if NO_KERNELS else NATIVE)
