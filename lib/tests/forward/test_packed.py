"""Layers over panels: int8 weights, text that is lossless against them, and weights of 16 bits packed for few rows."""

import pytest
import torch
from torch import nn

from lib.decoding import generate, in_batches
from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.packed import PackedLinear, int8, pack, panels_of, quantize_int8, rounded
from lib.kernels import build
from lib.kernels.panels import of_16_bits
from lib.tests import small_models

PROMPTS = small_models.prompts(2, (3, 11, 6))


def weights(model) -> int:
    """Bytes of a model's parameters and buffers, those that modules share once."""
    return sum({part.data_ptr(): part.nbytes for part in (*model.parameters(), *model.buffers())}.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_rounded_weight_is_within_half_a_step(dtype):
    weight = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight[3] = 0
    quantised, scale = rounded(weight)
    error = (quantised.double() * scale[:, None] - weight).abs().amax(1)
    assert quantised.dtype == torch.int8 and (error <= scale * 0.5001).all() and not quantised[3].any()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_the_layer_is_the_product_with_its_rounded_weight(dtype, tolerance):
    linear = torch.nn.Linear(64, 48).to(dtype)
    layer, x = int8(linear), torch.randn(2, 5, 64).to(dtype)
    expected = x.double() @ layer.panels.rows().double().T + linear.bias.double()
    assert layer(x).dtype == dtype
    torch.testing.assert_close(layer(x).double(), expected, rtol=tolerance, atol=tolerance)


def test_greedy_output_is_that_of_the_quantised_target():
    target, drafter = small_models.llama(0), small_models.related(small_models.llama(0), 1, noise=0.3)
    before = weights(target)
    for model in (target, drafter):
        quantize_int8(model)
    assert weights(target) < before / 2 and isinstance(target.lm_head, PackedLinear)
    ids, mask = next(in_batches(PROMPTS, 3))
    settings = dict(attention_mask=mask, shape="kary:2@6", max_new_tokens=16)
    done = generate(target, LanguageModelDrafter(drafter), ids, **settings)
    for prompt, tokens in zip(PROMPTS, done.new_tokens):
        expected = target.generate(prompt[None], max_new_tokens=16, do_sample=False, pad_token_id=0, eos_token_id=None)
        assert expected[0, len(prompt) :].tolist() == tokens


def test_a_layer_of_float16_numbers_takes_bfloat16_inputs_too():
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).half().float()
    panels = of_16_bits(weight)
    assert panels.numbers.dtype == torch.float16 and not panels.takes(torch.bfloat16)
    x = torch.randn(3, 64).bfloat16()
    ours = PackedLinear(panels, torch.bfloat16)(x).float()
    torch.testing.assert_close(ours, x.float() @ weight.T, atol=0.1, rtol=0.02)


@torch.no_grad()
def test_a_packed_module_computes_the_same():
    """Weights that are no numbers of 16 bits are read as they are."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 4, bias=False)), torch.randn(2, 5, 6)
    before = module(x)
    torch.testing.assert_close(pack(module)(x), before, atol=1e-6, rtol=1e-5)
    assert [panels_of(layer) for layer in module] == [None] * 3
    assert "forward" not in vars(pack(nn.Linear(3, 3).double())), "no kernel multiplies in float64"


@pytest.mark.skipif(build.unavailable() is not None, reason="panels need the kernels")
@torch.no_grad()
def test_weights_of_16_bits_are_in_panels_until_they_change():
    torch.manual_seed(0)
    layer, x = nn.Linear(40, 70), torch.randn(3, 40)
    layer.weight.copy_(layer.weight.bfloat16())
    before = layer(x)
    torch.testing.assert_close(pack(layer)(x), before, atol=1e-6, rtol=1e-5)
    assert panels_of(layer).kind == of_16_bits(layer.weight).kind
    layer.weight.mul_(2)
    assert panels_of(layer) is None
    torch.testing.assert_close(layer(x), 2 * before - layer.bias, atol=1e-6, rtol=1e-5)
