"""A GGUF file's own numbers as weights: the model is the one that the file dequantises to in float32, where products do
not round their inputs. Where they do, one difference in the last bit may round to another byte.
"""

import pytest
import torch
from gguf import GGMLQuantizationType as KINDS
from gguf import dequantize

from lib.decoding import generate, in_batches
from lib.drafters import make
from lib.forward import load_pair
from lib.forward.packed import PackedEmbedding, PackedLinear
from lib.kernels import products
from lib.models import gguf, load
from lib.tests import tiny_gguf
from lib.tests.instruction_sets import instruction_set  # noqa: F401 (a fixture of every test)
from lib.tests.live import continuation

BLOCKS = [KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def exact(monkeypatch):
    """Products that do not round their inputs on any processor."""
    monkeypatch.setattr(products, "rounds", lambda _: False)


def dequantised(path):
    """The model of a file in float32, from gguf's own reader and definition of the blocks."""
    model = load.load_pair(str(path), dtype="float32").target
    for tensor in gguf.parameters(path, *gguf.read(path), model):
        model.get_parameter(tensor.name).data = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
    model.tie_weights()
    return model


@pytest.mark.parametrize("kind", [*BLOCKS, KINDS.F16, KINDS.BF16, KINDS.F32], ids=lambda kind: kind.name)
def test_logits_are_those_of_the_file_dequantised_in_float32(tmp_path, exact, kind):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", quantised=kind)
    pair, whole = load_pair(str(path), dtype="stored"), dequantised(path)
    table, output = pair.target.get_input_embeddings(), pair.target.lm_head
    assert pair.dtype == "stored" and pair.eos_token_ids == (1,)
    if kind in BLOCKS:
        assert isinstance(table, PackedEmbedding) and isinstance(output, PackedLinear)
        assert table.numbers is output.numbers
    ids = torch.randint(2, 250, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(pair.target(ids).logits, whole(ids).logits, atol=5e-5, rtol=1e-4)
        torch.testing.assert_close(table(ids), whole.get_input_embeddings()(ids))


@pytest.mark.parametrize("kind", [KINDS.Q4_1, KINDS.Q8_0], ids=lambda kind: kind.name)
def test_greedy_text_with_a_tree_is_that_of_the_dequantised_model(tmp_path, exact, kind):
    """Through native blocks where they run, whose embedding and output layer read the same panels."""
    path = tiny_gguf.write(tmp_path / "tiny.gguf", quantised=kind)
    pair, whole = load_pair(f"{path}|{path}", dtype="stored"), dequantised(path)
    prompts = [torch.arange(5, 5 + length) for length in (9, 17)]
    ids, mask = next(in_batches(prompts, 2))
    done = generate(pair.target, make("model", pair), ids, attention_mask=mask, shape="kary:2@6", max_new_tokens=20)
    for prompt, tokens in zip(prompts, done.new_tokens):
        assert tokens == continuation(whole, prompt, 20)
