"""Number formats: layers over panels of int8 and of 16 bits, and pairs whose models have formats of their own."""

import pytest
import torch
from torch import nn

from lib import forward
from lib.decoding import generate
from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.load import formats_of
from lib.forward.packed import PackedEmbedding, PackedLinear, int8, pack, quantize_int8, rounded
from lib.kernels import build
from lib.kernels.panels import of_16_bits
from lib.models import PairError, checks, load
from lib.tests import small_models, tiny_gguf
from lib.tests.live import continuation

PROMPTS = small_models.prompts(2, (3, 11, 6))
needs_kernels = pytest.mark.skipif(build.unavailable() is not None, reason="panels need the kernels")


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


def test_a_quantised_model_has_less_than_half_the_bytes():
    model = small_models.llama(0)
    before = weights(model)
    quantize_int8(model)
    assert weights(model) < before / 2 and isinstance(model.lm_head, PackedLinear)


def test_a_layer_of_float16_numbers_takes_bfloat16_inputs_too():
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).half().float()
    panels = of_16_bits(weight)
    assert panels.numbers.dtype == torch.float16 and not panels.takes(torch.bfloat16)
    x = torch.randn(3, 64).bfloat16()
    ours = PackedLinear(panels, torch.bfloat16)(x).float()
    torch.testing.assert_close(ours, x.float() @ weight.T, atol=0.1, rtol=0.02)


@needs_kernels
@torch.no_grad()
def test_linear_layers_of_16_bits_are_replaced_by_packed_ones():
    """Others stay: those whose weights are no numbers of 16 bits, and those in float64, which no kernel multiplies."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(40, 70), nn.SiLU(), nn.Linear(70, 4, bias=False)), torch.randn(2, 5, 40)
    module[0].weight.copy_(module[0].weight.bfloat16())
    before = module(x)
    assert [type(layer) for layer in pack(module)] == [PackedLinear, nn.SiLU, nn.Linear]
    torch.testing.assert_close(module(x), before, atol=1e-6, rtol=1e-5)
    exact = module.double()(x.double())
    torch.testing.assert_close(exact, before.double(), atol=1e-5, rtol=1e-5)
    assert isinstance(pack(nn.Sequential(nn.Linear(3, 3).double()))[0], nn.Linear)


@needs_kernels
@pytest.mark.parametrize("tied", [True, False])
def test_a_packed_model_holds_each_weight_once(tied):
    model = small_models.llama(0, dtype=torch.bfloat16, hidden=128, vocabulary=256)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    before, expected = weights(model), model(PROMPTS[1][None]).logits
    table = pack(model).get_input_embeddings()
    assert weights(model) == before and isinstance(table, PackedEmbedding) == tied
    assert not tied or table.numbers is model.lm_head.numbers
    torch.testing.assert_close(model(PROMPTS[1][None]).logits, expected, atol=0.3, rtol=0.05)


# ---------------------------------------------------------------------------------------------------------------- pairs


def test_each_model_may_have_a_format_of_its_own():
    """Text drafted in bfloat16 and verified in float32 is the text of the float32 target."""
    pair = forward.load_pair("small/tiny", "float32|bfloat16")
    assert pair.dtype == "float32|bfloat16" and pair.draft_model.dtype == torch.bfloat16
    prompt = pair.tokenizer("def area(width, height):\n", return_tensors="pt")["input_ids"]
    done = generate(pair.target, LanguageModelDrafter(pair.draft_model), prompt, shape="kary:2@6", max_new_tokens=24)
    assert done.new_tokens == [continuation(pair.target, prompt[0], 24)]


def test_models_that_pairs_share_are_quantised_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tiny_gguf.write(tmp_path / "tiny.gguf")
    one, other, last = forward.load_pairs(["base/small", "base/tiny", "small/tiny"], "int8")
    assert one.target is other.target and one.draft_model is last.target and last.dtype == "int8"
    both = forward.load_pair(f"{file}|{file}", "stored|int8")  # one model in two formats
    assert both.dtype == "stored|int8" and both.target.dtype == torch.float32 and both.target is not both.draft_model


@pytest.mark.parametrize("keywords, says", [
    (dict(dtype="int3"), "dtype is 'int3'; give one of float32"), (dict(dtype="float32|int3"), "dtype is"),
    (dict(dtype="float32|float32|float32"), "dtype is"), (dict(dtype=""), "dtype is ''"),
    (dict(dtype="stored"), "dtype is 'stored', but small is no GGUF file")])
def test_what_cannot_have_a_format_is_refused_by_name(keywords, says):
    with pytest.raises(PairError, match=says):
        forward.load_pair("small/tiny", **keywords)


@pytest.mark.parametrize("units, missing, faster, expected", [
    (False, None, True, "float32"), (True, "no compiler", False, "bfloat16"), (True, None, True, "bfloat16"),
    (True, None, False, "float32")])
def test_the_number_format_follows_the_processor(monkeypatch, units, missing, faster, expected):
    """The faster format is measured on a processor with bfloat16 units where the kernels run."""
    monkeypatch.setattr(checks.processor, "has_bfloat16_units", lambda: units)
    monkeypatch.setattr(checks.build, "unavailable", lambda: missing)
    monkeypatch.setattr(checks.products, "faster_in_bfloat16", lambda: faster)
    assert load.load_pair("tiny").dtype == forward.load_pair("tiny", "auto").dtype == expected
    assert load.load_pair("tiny", torch.float64).dtype == forward.load_pair("tiny", "float64").dtype == "float64"
    assert checks.own_dtype("cuda:0") == torch.bfloat16
    assert [activations for activations, _ in formats_of("stored|bfloat16")] == [torch.float32, torch.bfloat16]
