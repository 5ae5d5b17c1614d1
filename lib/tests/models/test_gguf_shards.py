"""A GGUF file that is split into shards is the model that it was, whichever shard is named."""

import shutil

import gguf
import numpy as np
import pytest
import torch

from lib import forward, models
from lib.models import gguf_files
from lib.models.checks import PairError
from lib.models.registry import source
from lib.tests import tiny_gguf

SHARDS = [f"one-{number}-of-00003.gguf" for number in ("00001", "00002", "00003")]  # 20 tensors, at most 8 in each


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "draft-trees" / "gguf"


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


def refusal(folder) -> str:
    """What is said of the shards of a folder before anything runs."""
    with pytest.raises(PairError) as caught:
        models.check_pairs([str(folder)])
    return str(caught.value)


def test_shards_that_are_missing_damaged_or_do_not_belong_together_are_named(cache, folder):
    first, second, third = (folder / name for name in SHARDS)
    content = third.read_bytes()
    third.unlink()
    for named in (folder, first, second):
        assert f"is one of 3 shards, and {SHARDS[2]} is not among those in {folder}; fetch all" in refusal(named)
    third.write_bytes(content.replace(b"blk.1.ffn_up", b"blk.0.ffn_up"))
    assert f"{SHARDS[2]} cannot be read" in (said := refusal(folder)) and "ffn_up.weight' is in another" in said
    third.write_bytes(content[:-64])
    assert f"{SHARDS[2]} cannot be read as GGUF" in refusal(folder)
    third.write_bytes(content)
    shutil.copy(first, second)
    assert f"{SHARDS[1]} says that it is shard 0 of 3" in (said := refusal(folder)) and "name says 1 of 3" in said
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_a_full_disk_while_joining(cache, folder, monkeypatch):
    def full(files, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_files, "join", full)
    assert "cannot be kept in" in (said := refusal(folder)) and "No space left" in said
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
    assert f"holds 2 GGUF files ({SHARDS[0]}, two.gguf); name the one to load" in refusal(folder)
