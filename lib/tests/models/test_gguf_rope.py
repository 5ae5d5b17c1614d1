"""A GGUF file's scaling of the rotary embedding reaches the model: at position 3,000 its logits are those of a model of
transformers with that configuration, and those of llama.cpp.
"""

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Starcoder2Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lib import forward, models
from lib.models import gguf_rope
from lib.models.checks import PairError
from lib.tests import tiny_gguf

WINDOW, POSITION, THETA = 4096, 3000, 10000.0
LLAMA3 = dict(rope_type="llama3", rope_theta=THETA, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
YARN = dict(rope_type="yarn", rope_theta=THETA, factor=4.0, original_max_position_embeddings=1024)
TYPES = gguf.RopeScalingType


def configured(**rope) -> LlamaConfig:
    """The configuration of `tiny_gguf`'s model, by hand."""
    return LlamaConfig(
        vocab_size=len(tiny_gguf.TOKENS), hidden_size=tiny_gguf.HIDDEN, intermediate_size=tiny_gguf.FEED,
        num_hidden_layers=2, num_attention_heads=tiny_gguf.HEADS, num_key_value_heads=tiny_gguf.KEY_HEADS,
        rms_norm_eps=1e-5, max_position_embeddings=WINDOW, tie_word_embeddings=True, rope_parameters=rope)


def factors(**rope) -> np.ndarray:
    """Those of `rope_freqs.weight`, from transformers' own frequencies."""
    plain = THETA ** -(np.arange(0, 16, 2) / 16)
    return (plain / ROPE_INIT_FUNCTIONS["llama3"](configured(**rope))[0].numpy()).astype(np.float32)


def writes(kind: TYPES | None = None, **values):
    """What adds these keys, and arrays as tensors."""
    def more(writer: gguf.GGUFWriter) -> None:
        if kind is not None:
            writer.add_rope_scaling_type(kind)
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                writer.add_tensor(f"{name}.weight", value)
            elif isinstance(value, int):
                writer.add_uint32(f"llama.rope.scaling.{name}", value)
            else:
                writer.add_float32(f"llama.rope.scaling.{name}", value)

    return more


READ = {
    "linear": (writes(TYPES.LINEAR, factor=4.0), dict(rope_type="linear", rope_theta=THETA, factor=4.0)),
    "linear by default": (writes(factor=2.0), dict(rope_type="linear", rope_theta=THETA, factor=2.0)),
    "yarn": (writes(TYPES.YARN, factor=4.0, original_context_length=1024), YARN),
    "yarn with bounds": (writes(TYPES.YARN, factor=4.0, original_context_length=1024, yarn_beta_fast=16.0,
                                yarn_beta_slow=2.0), YARN | dict(beta_fast=16.0, beta_slow=2.0)),
    "yarn with a factor": (writes(TYPES.YARN, factor=4.0, original_context_length=1024, attn_factor=0.5),
                           YARN | dict(attention_factor=0.5 * (1 + 0.1 * np.log(4)))),
    "llama 3.1": (writes(rope_freqs=factors(**LLAMA3, factor=8.0)), LLAMA3 | dict(factor=8.0)),
    "llama 3.2": (writes(rope_freqs=factors(**LLAMA3, factor=32.0)), LLAMA3 | dict(factor=32.0)),
    "none": (writes(TYPES.NONE, factor=4.0), dict(rope_type="default", rope_theta=THETA)),
    "factors of 1": (writes(rope_freqs=np.ones(8, np.float32)), dict(rope_type="default", rope_theta=THETA))}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(len(tiny_gguf.TOKENS), (1, POSITION + 1), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", READ)
def test_logits_are_those_of_a_model_with_that_configuration(tmp_path, ids, name):
    more, rope = READ[name]
    pair = models.load_pair(str(tiny_gguf.write(tmp_path / "one.gguf", window=WINDOW, more=more)), dtype="float64")
    own = LlamaForCausalLM(configured(**rope)).double().eval()
    plain = LlamaForCausalLM(configured(rope_type="default", rope_theta=THETA)).double().eval()
    for model in (own, plain):
        model.load_state_dict(pair.target.state_dict())
    with torch.inference_mode():
        ours, theirs, unscaled = (model(ids, logits_to_keep=1).logits[0, -1] for model in (pair.target, own, plain))
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert torch.allclose(theirs, unscaled, atol=1e-3) == (rope["rope_type"] == "default")


@pytest.mark.parametrize("name", READ)
def test_logits_are_those_of_llama_cpp(tmp_path, ids, name):
    llama = pytest.importorskip("llama_cpp")
    path = tiny_gguf.write(tmp_path / "one.gguf", window=WINDOW, more=READ[name][0],
                           quantised=gguf.GGMLQuantizationType.F32)
    engine = llama.Llama(str(path), n_ctx=WINDOW, n_batch=WINDOW, n_threads=1, verbose=False,
                         **{f"yarn_{key}": READ[name][1][key] for key in ("beta_fast", "beta_slow")
                            if key in READ[name][1]},  # which it does not read of Llamas
                         type_k=llama.GGML_TYPE_F32, type_v=llama.GGML_TYPE_F32)
    engine.eval(ids[0].tolist())
    theirs = np.ctypeslib.as_array(llama.llama_get_logits(engine._ctx.ctx), shape=(len(tiny_gguf.TOKENS),))
    with torch.inference_mode():
        ours = forward.load_pair(str(path), "stored").target(ids, logits_to_keep=1).logits[0, -1].numpy()
    assert np.abs(ours - theirs).max() < 2e-3 < 0.05 * ours.std()


@pytest.mark.parametrize("more, says", [
    (writes(TYPES.LONGROPE, factor=4.0), "by rope.scaling.type 'longrope', which is not read here; take the model as"),
    (writes(TYPES.LINEAR, factor=4.0, attn_factor=0.5), "by rope.scaling.attn_factor 0.5, which"),
    (writes(TYPES.YARN, factor=4.0, yarn_ext_factor=0.5), "by rope.scaling.yarn_ext_factor 0.5, which"),
    (writes(TYPES.YARN, factor=4.0, yarn_log_multiplier=0.5), "by rope.scaling.yarn_log_multiplier 0.5, which"),
    (writes(factor=4.0, rope_freqs=factors(**LLAMA3, factor=8.0)), "by tensor rope_freqs.weight"),
    (writes(rope_freqs=np.linspace(1, 8, 8, dtype=np.float32)), "by tensor rope_freqs.weight, whose factors are not"),
    (writes(rope_freqs=1.0001 * factors(**LLAMA3, factor=8.0)), "by tensor rope_freqs.weight, whose factors are not"),
    (writes(rope_factors_long=factors(**LLAMA3, factor=8.0)), "by tensor rope_factors_long.weight, whose factors are")])
def test_other_scaling_is_refused_by_its_name(tmp_path, more, says):
    with pytest.raises(PairError) as caught:
        models.check_pairs([str(tiny_gguf.write(tmp_path / "odd.gguf", window=WINDOW, more=more))])
    assert f"odd.gguf scales its rotary embedding {says}" in str(caught.value)


def test_the_base_of_each_architecture_is_read(tmp_path):
    config = Starcoder2Config()  # transformers does not read its base
    metadata = {"general.architecture": "starcoder2", "starcoder2.rope.freq_base": 1e5}
    gguf_rope.take_scaling(tmp_path, metadata, {}, config)
    assert config.rope_parameters["rope_theta"] == 1e5
