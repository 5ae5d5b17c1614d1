"""Every forward pass gives what transformers' layers give within rounding, and follows the model's weights; prefill."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from lib.attention import registration
from lib.forward.packed import pack, quantize_int8
from lib.forward.passes import LAYERS, NATIVE, forward_pass
from lib.forward.prefill import prefill
from lib.kernels import build
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
@pytest.mark.parametrize("packs", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("lengths", [(7,), (5, 9), (6, 6, 6)], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_block_gives_what_the_layers_give(config, lengths, dtype, packs):
    """Packed weights are read in panels by the kernels, plain ones in PyTorch's own order."""
    model = made(config, dtype)
    if packs:
        model.bfloat16().to(dtype)
    theirs, cache = block(model, LAYERS, lengths)
    ours, filled = block(pack(model) if packs else model, NATIVE, lengths)
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
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=["plain", "packed"])
def test_prompts_and_trees_without_a_prefix_are_read_as_the_layers_read_them(longest, weights):
    model = pack(made().to(weights).float())
    prompts = torch.randint(1, 50, (2, longest), generator=torch.Generator().manual_seed(1))
    for tokens, depth, mask in ((prompts, torch.arange(longest), None), (prompts[:, : TREE.size], DEPTH, MASK)):
        keep, caches = torch.tensor([3, tokens.shape[1] - 1]), (TreeCache(), TreeCache())
        ours, theirs = (forward_pass(model, name)(tokens, depth, mask, cache, logits_to_keep=keep).logits
                        for name, cache in zip((NATIVE, LAYERS), caches))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
        for layers in zip(*(cache.layers for cache in caches), strict=True):
            torch.testing.assert_close(*(layer.keys[:, :, : tokens.shape[1]] for layer in layers), atol=1e-5, rtol=1e-4)


@needs_kernels
@torch.inference_mode()
@pytest.mark.parametrize("token, depth, mask, error", [
    (-1, 3, (3, 3), "token -1 is none of the embedding's 50"), (50, 3, (3, 3), "token 50 is none"),
    (7, 4, (3, 3), "3 nodes after 0 pending"), (7, 3, (3, 4), "3 nodes after"), (7, 3, (2, 3), "3 nodes after")])
def test_tokens_positions_and_masks_that_do_not_fit_are_refused(token, depth, mask, error):
    with pytest.raises((IndexError, ValueError), match=error):
        forward_pass(made(), NATIVE)(torch.tensor([[7, token, 7]]), torch.arange(depth),
                                     torch.ones(mask, dtype=torch.bool), TreeCache())


@needs_kernels
@pytest.mark.parametrize("change", [lambda model: model.model.layers[1].mlp.up_proj.weight.mul_(1.5), quantize_int8,
                                    lambda model: pack(model.bfloat16().float())], ids=["scaled", "int8", "packed"])
def test_kernels_are_made_again_when_weights_change(change):
    model = made(CONFIGS["qwen2"])
    assert forward_pass(model, NATIVE).blocks is forward_pass(model).blocks
    block(model, NATIVE)
    with torch.no_grad():
        change(model)
    assert_native_is_layers(model, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("make_model, reason", [
    (lambda: made(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)), "GPT2LMHeadModel"),
    (lambda: small_models.llama(0), "its weights are torch.float64"),
    (lambda: made(LlamaConfig(**SIZES, hidden_act="gelu")), "its activation is GELU"),
    (lambda: made(LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})),
     "dynamic")])
def test_what_the_kernels_do_not_serve_runs_in_layers(make_model, reason):
    model = make_model()
    with pytest.raises(ValueError, match=f"cannot run as 'native': .*{reason}"):
        forward_pass(model, NATIVE)
    assert forward_pass(model).name == LAYERS


@pytest.mark.parametrize("lengths", [(6, 13, 7, 20, 7, 13), (20, 16), (7, 20), (20,)])
def test_a_prefill_by_groups_equals_each_text_alone(lengths):
    model, texts = small_models.llama(0), small_models.prompts(0, lengths)
    run = forward_pass(model)
    done = prefill(run, texts, hidden_states=True)
    for row, text in enumerate(texts):
        alone, length = prefill(run, [text], hidden_states=True), len(text)
        assert torch.allclose(done.logits[row], alone.logits[0], atol=1e-5) and done.cache.lengths[row] == length
        for layer, other in zip(done.cache.layers, alone.cache.layers, strict=True):
            for ours, theirs in zip(layer.buffers, other.buffers):
                assert torch.allclose(ours[:, row, :, :length], theirs[:, 0, :, :length], atol=1e-5)
        states = model(text[None], output_hidden_states=True).hidden_states
        assert all(torch.allclose(ours[row, :length], theirs[0], atol=1e-5)
                   for ours, theirs in zip(done.hidden_states, states, strict=True))
