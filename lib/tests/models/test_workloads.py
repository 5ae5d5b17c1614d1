"""Prompts of a given length, of the shipped texts and of a user's folder."""

import pytest

from lib.models import workloads
from lib.models.load import _tokenizer, sources
from lib.models.prompts import load


def tokenizer(name="base/small"):
    return _tokenizer(sources(name)[0])


def test_prompts_have_the_length_that_is_asked_for():
    own = tokenizer()
    asked = workloads.of_length(own, 300, first=2)
    beginning = len(own("")["input_ids"])
    assert {len(ids) for ids in asked.ids} == {300 + beginning} and len(set(asked.names)) == len(asked.ids)
    assert set(asked.kinds) == set(workloads.shipped()) and min(map(asked.kinds.count, asked.kinds)) == 2
    with pytest.raises(ValueError, match="prompts of 1000000 tokens.*longest kind"):
        workloads.of_length(own, 10**6)


def test_a_folder_gives_its_texts_by_kind(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "one.py").write_text("x = 1\n" * 200)
    (tmp_path / "two.md").write_text("A line of prose.\n" * 200)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00")
    texts = workloads.of_folder(tmp_path)
    assert set(texts) == {"py", "md"}
    read = load(tmp_path, tokenizer())
    assert read.names == ("inside/one.py", "two.md") and read.kinds == ("py", "md")
    prompts = workloads.of_length(tokenizer(), 64, texts=texts)
    assert sorted(prompts.kinds) == ["md", "py"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no text in UTF-8"):
        workloads.of_folder(empty)
