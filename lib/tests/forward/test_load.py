"""Pairs in every number format, alone and shared by pairs; what cannot have a format says so."""

import pytest
import torch

from lib import forward, models
from lib.decoding import generate
from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.load import dtypes_of, load_again
from lib.forward.packed import PackedLinear
from lib.models import PairError, checks
from lib.tests import tiny_gguf


def quantised(model) -> bool:
    return any(isinstance(module, PackedLinear) for module in model.modules())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("gguf")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield str(tiny_gguf.write(folder / "tiny.gguf"))


def test_each_model_may_have_a_format_of_its_own():
    """Text drafted in bfloat16 and verified in float32 is the text of the float32 target."""
    pair = forward.load_pair("small/tiny", "float32|bfloat16")
    assert (pair.target.dtype, pair.draft_model.dtype) == (torch.float32, torch.bfloat16)
    assert pair.dtype == "float32|bfloat16"
    prompt = pair.tokenizer("def area(width, height):\n", return_tensors="pt")["input_ids"]
    expected = pair.target.generate(prompt, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    done = generate(pair.target, LanguageModelDrafter(pair.draft_model), prompt, shape="kary:2@6", max_new_tokens=24)
    assert torch.equal(done.sequences, expected)


def test_weights_of_fewer_bits_stand_for_the_plain_ones():
    pair = forward.load_pair("small/tiny", "int8|bfloat16")
    assert quantised(pair.target) and not quantised(pair.draft_model) and pair.dtype == "int8|bfloat16"
    plain, ids = models.load_pair("small/tiny", "bfloat16"), torch.arange(5, 25)[None]
    ours, theirs = (each.target(ids).logits.float() for each in (pair, plain))
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).min() > 0.99


def test_models_that_pairs_share_are_quantised_once(file):
    one, other, last = forward.load_pairs(["base/small", "base/tiny", "small/tiny"], "int8")
    assert one.target is other.target and one.draft_model is last.target and quantised(last.draft_model)
    both = forward.load_pair(f"{file}|{file}", "stored|int8")  # one model in two formats
    assert both.dtype == "stored|int8" and both.target.dtype == torch.float32 and both.target is not both.draft_model


def test_pairs_are_loaded_again_in_their_own_and_in_another_format(file):
    pairs = forward.load_pairs(["base/tiny", "base"], "float32|bfloat16")
    assert [pair.dtype for pair in load_again(pairs[1:])] == ["float32"] and load_again(pairs)[0].target is not None
    assert [pair.dtype for pair in load_again(pairs, "int8")] == ["int8", "int8"]
    pair = models.load_pair(f"{file}|{file}", "float32")
    assert load_again([pair], "stored")[0].dtype == "stored" and load_again([pair])[0].dtype == "float32"


@pytest.mark.parametrize("keywords, says", [
    (dict(dtype="int3"), "dtype is 'int3'; give one of float32"), (dict(dtype="float32|int3"), "dtype is"),
    (dict(dtype="float32|float32|float32"), "dtype is"), (dict(dtype=""), "dtype is ''"),
    (dict(dtype="stored"), "dtype is 'stored', but small is no GGUF file"),
    (dict(name="random:llama-68m@1", dtype="int8"), "random weights")])
def test_what_cannot_have_a_format_is_refused_by_name(keywords, says):
    with pytest.raises(PairError, match=says):
        forward.load_pair(**{"name": "small/tiny"} | keywords)


def test_activations_beside_stored_blocks_are_in_float32():
    assert dtypes_of("stored|bfloat16") == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("units, missing, faster, expected", [
    (False, None, True, "float32"), (True, "no compiler", False, "bfloat16"), (True, None, True, "bfloat16"),
    (True, None, False, "float32")])
def test_the_number_format_follows_the_processor(monkeypatch, units, missing, faster, expected):
    """The faster format is measured on a processor with bfloat16 units where the kernels run."""
    monkeypatch.setattr(checks.processor, "has_bfloat16_units", lambda: units)
    monkeypatch.setattr(checks.build, "unavailable", lambda: missing)
    monkeypatch.setattr(checks.products, "faster_in_bfloat16", lambda: faster)
    assert models.load_pair("tiny").dtype == forward.load_pair("tiny", "auto").dtype == expected
    assert models.load_pair("tiny", torch.float64).dtype == forward.load_pair("tiny", "float64").dtype == "float64"
    assert checks.own_dtype("cuda:0") == torch.bfloat16
