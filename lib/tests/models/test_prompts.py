"""Prompt files: which forms are read, what is refused by file and line, and what is drawn from a set."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from lib.models import prompts
from lib.tests import mutations
from lib.tests.letters import Letters

text = Letters().decode


def row(name, kind="a", turns=("hello",), **more):
    return {"question_id": name, "category": kind, "turns": list(turns)} | more


def message(role, content):
    return {"role": role, "content": content}


def written(path, *lines):
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
                                for line in lines) + b"\n")
    return path


@pytest.mark.parametrize("line, prompts_of_line", [
    (row(81, "stem", ["one", "later"], reference=["x", "y"]), {"81": "<user>one<bot>"}),
    (row(81, "qa", ["one", "two"], answers=["1"]), {"81": "<user>one<assistant>1<user>two<bot>"}),
    (row(81, "qa", ["one", "two", "three"], answers=["1"]), {"81": "<user>one<bot>"}),
    ({"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "check(f)"}, {"HumanEval/0": "<user>def f():\n<bot>"}),
    ({"prompt": "hello"}, {"1": "<user>hello<bot>"}),
    ({"messages": [message("user", "hello") | {"name": "ann"}], "question_id": None}, {"1": "<user>hello<bot>"}),
    ({"prompt": "weather?", "tools": [{"name": "city"}], "chat_template_kwargs": {"mood": "<glad>"}},
     {"1": "<glad><tool><user>weather?<bot>"}),
    ({"question_id": "m", "messages": [message("system", "short"), message("user", "one"), message("assistant", "1"),
                                       message("user", "two")]},
     {"m": "<system>short<user>one<assistant>1<user>two<bot>"}),
    ({"question_id": "c", "conversation": [message("user", "one")]}, {"c": "<user>one<bot>"}),
    *(({name: "c", "conversation": [message("user", "one"), message("assistant", "1"), message("user", "two"), *last]},
       {"c turn 1": "<user>one<bot>", "c turn 2": "<user>one<assistant>1<user>two<bot>"}) for name, last in (
           ("question_id", []), ("conversation_id", [message("assistant", "2")]),
           ("conversation_hash", [message("assistant", "2") | {"toxic": False, "language": "English"}]))),
])
def test_the_published_forms(tmp_path, line, prompts_of_line):
    read = prompts.load(written(tmp_path / "p.jsonl", line), Letters("yes"))
    assert dict(zip(read.names, map(text, read.ids))) == prompts_of_line
    kind = line.get("category", "code" if "task_id" in line else "chat")
    assert set(read.kinds) == {kind} and read.ids[0].dtype == torch.long


def test_a_broken_file_is_refused_or_has_no_other_prompts_than_the_whole_one(tmp_path):
    lines = [row(81, turns=["one"]), row(82, turns=["one", "two"], answers=["1"]),
             {"prompt": "who?", "tools": [{"name": "x"}]}, {"prompt": "who?"},
             {"conversation_id": "c", "conversation": [message("user", "a\u2028b"), message("assistant", "1")]}]
    mutations.check(lambda path: {*map(text, prompts.load(path, Letters("yes")).ids)},
                    [json.dumps(line, ensure_ascii=False) for line in lines], tmp_path / "p.jsonl")


REFUSED = [(case["line"], f"line 3{case['reason']}") for case in map(
    json.loads, Path(__file__).with_name("refused.jsonl").open())]  # a line as an object, or as it stands in the file


@pytest.mark.parametrize("line, reason", [
    *REFUSED, (b"[" * 100_000, "line 3 is no JSON in UTF-8 .maximum recursion"),
    (b"\xff\xfe", "line 3 is no JSON in UTF-8 .* invalid start byte")])
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, reason):
    line = line.encode() if isinstance(line, str) else line
    path = written(tmp_path / "p.jsonl", row(1), b"", line, row(9))
    with pytest.raises(ValueError, match=reason) as caught:
        prompts.load(path, Letters(), 20)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no prompts at .*p.jsonl"):
        prompts.load(tmp_path / "p.jsonl", Letters())
    with pytest.raises(ValueError, match="holds no prompt"):
        prompts.load(written(tmp_path / "p.jsonl", b"", b" "), Letters())


def test_each_text_file_of_a_folder_is_a_prompt(tmp_path):
    with pytest.raises(ValueError, match="holds no text in UTF-8; give a folder of files"):
        prompts.load(tmp_path, Letters())
    (tmp_path / "inside").mkdir()
    for name, content in (("inside/one.py", b"x = 1\n" * 900), ("two.md", b"A line of text.\n"),
                          ("picture.png", b"\x89PNG"), ("odd.txt", b"\xff\xfe\x00"), ("empty.txt", b" \n")):
        (tmp_path / name).write_bytes(content)
    read = prompts.load(tmp_path, Letters())
    assert read.names == ("inside/one.py", "two.md") and read.kinds == ("py", "md")
    assert [len(ids) for ids in read.ids] == [prompts.MOST_CHARACTERS, 16]


def test_the_default_are_chat_prompts_for_a_tokenizer_with_a_template_and_else_the_familys_plain_texts():
    for tokenizer, same in ((Letters("yes"), "chat"), (Letters(), "family")):
        read, expected = (prompts.load(name, tokenizer, first=1) for name in ("", same))
        assert read.names == expected.names and list(map(text, read.ids)) == list(map(text, expected.ids))
        assert set(Counter(read.kinds).values()) == {1}
    read = prompts.load("family", Letters("yes"))
    assert sorted(Counter(read.kinds).values()) == [40] * 6
    assert not any(text(ids).startswith("<user>") for ids in read.ids)


def test_the_chat_file_holds_prompts_to_choose_by_before_those_to_judge_by():
    read = prompts.load("chat", Letters("yes"))
    later = {name for name, ids in zip(read.names, read.ids) if "<assistant>" in text(ids)}
    assert len(read.names) == 312 and set(Counter(read.kinds).values()) == {24}
    for kind in set(read.kinds):
        names = [name for name, other in zip(read.names, read.kinds) if other == kind]
        assert names == [f"{kind}-{number:02}" for first in (1, 2) for number in range(first, 25, 2)]
        assert len(later & set(names[:12])) == len(later & set(names[12:])) == 4


def test_kinds_with_too_few_prompts_are_named():
    names, kinds = ["p0", "p1", "c turn 1", "c turn 2", "p2", "p3"], list("abaaab")  # a conversation counts once
    prompts.check_enough(names, kinds, 1, 1)
    with pytest.raises(ValueError, match="kinds b have fewer than 1 \\+ 2 prompts"):
        prompts.check_enough(names, kinds, 1, 2)
