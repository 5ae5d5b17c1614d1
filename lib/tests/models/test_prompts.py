"""Prompt files: which forms are read, what is refused by file and line, and what is drawn from a set."""

import gzip
import json
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.measure import parameters
from lib.models import prompts
from lib.models.prompts import PromptSet
from lib.tests.real_model import needs_real_model

class Letters:
    """A tokenizer whose tokens are characters, with a chat template or without."""

    added_tokens_decoder = {}

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __call__(self, text, **settings):
        return {"input_ids": [ord(character) for character in text if character != "\x00"]}

    def apply_chat_template(self, messages, **settings):
        assert settings == {"add_generation_prompt": True, "tokenize": False}
        return "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<bot>"


def text(ids):
    return "".join(map(chr, ids.tolist()))


def row(name, kind="a", turns=("hello",), **more):
    return {"question_id": name, "category": kind, "turns": list(turns)} | more


def written(path, *lines):
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
                                for line in lines) + b"\n")
    return path


# ----------------------------------------------------------------------------------------------------------- reading


def test_spec_benchs_form_is_read_in_its_order(tmp_path):
    path = written(tmp_path / "p.jsonl", row(81, "writing", ["one", "later"], reference=["x"]), b"  ",
                   row("b", "math", source="xsum"))
    read = prompts.load(path, Letters())
    assert (read.names, read.kinds) == (("81", "b"), ("writing", "math"))
    assert [text(ids) for ids in read.ids] == ["one", "hello"] and read.ids[0].dtype == torch.long


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")).filter(str.strip),
                min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(tmp_path_factory, texts):
    path = written(tmp_path_factory.mktemp("any") / "p.jsonl", *(row(i, turns=[turn]) for i, turn in enumerate(texts)))
    read = prompts.load(path, Letters())
    assert [text(ids) for ids in read.ids] == texts  # line separators inside a text are no lines


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row(1)).encode() + b"\r\n" + json.dumps(row(2)).encode() + b"\r\n")
    assert prompts.load(path, Letters()).names == ("1", "2")


@pytest.mark.parametrize("line, says", [
    (b"{'a': 1}", "line 3 is no JSON .* at column 2"),
    (b"[1, 2]", "line 3 is a list"),
    (b"\xff\xfe", "line 3 is no UTF-8 .byte 0."),
    ({"question_id": 1, "turns": ["x"]}, "line 3 lacks category; it has question_id, turns"),
    ({}, "line 3 lacks question_id, category, turns; it has nothing; give .*, or messages, or task_id and prompt"),
    (row(None), "line 3: question_id or task_id is None"),
    (row(7, kind=["a"]), r"line 3: .*category \['a'\]"),
    (row(7, turns="hello"[:0]), r"line 3: turns is \[\]"),
    ({"question_id": 7, "category": "a", "turns": "hello"}, "line 3: turns is 'hello'; give a list"),
    ({"question_id": 7, "category": "a", "turns": [1]}, r"line 3: turns is \[1\]"),
    (row("1"), "line 3: '1' is the name of line 1 already"),
    (row(3, turns=["x", 5]), r"line 3: turns is \['x', 5\]; give a list of texts"),
    ({"task_id": 7, "prompt": ["x"]}, r"line 3: prompt is \['x'\]; give a text"),
    ({"task_id": 7, "prompt": " "}, "line 3: the prompt is empty"),
    ({"messages": "hello"}, "line 3: messages is 'hello'; give objects with role"),
    ({"messages": []}, r"line 3: messages is \[\]"),
    ({"messages": ["hello"]}, r"line 3: messages is \['hello'\]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "line 3: messages is .*'tool'"),
    ({"messages": [{"role": "user", "content": None}]}, "line 3: messages is .*None"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "the last of the user"),
    (row(7, turns=["x", "y"], answers=[5]), "line 3: messages is .*5"),
    (row(7, turns=[" \n"]), "line 3: the prompt is empty"),
    (row(7, turns=["\x00"]), "line 3: the tokenizer makes no token"),
    (rb'{"question_id": 7, "category": "a", "turns": ["a \ud83d"]}',
     r"line 3: turns holds '\\ud83d', half of a character"),
    ({"question_id": 7, "category": "a", "source": "x"}, "line 3: source is 'x'; give end, package, part"),
    ({"question_id": 7, "category": "a", "source": {"package": "x"}}, "line 3: source is .*; give end, package"),
])
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, says):
    path = written(tmp_path / "p.jsonl", row(1), b"", line, row(9))
    with pytest.raises(ValueError, match=says) as caught:
        prompts.load(path, Letters())
    assert str(path) in str(caught.value)


def test_a_file_that_is_missing_or_holds_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no prompts at .*nowhere.jsonl"):
        prompts.load(tmp_path / "nowhere.jsonl", Letters())
    with pytest.raises(ValueError, match="holds no text in UTF-8; give a folder of files"):
        prompts.load(tmp_path, Letters())
    with pytest.raises(ValueError, match="holds no prompt"):
        prompts.load(written(tmp_path / "empty.jsonl", b"\n"), Letters())


def test_a_source_that_is_not_installed_is_named_with_its_line(tmp_path):
    source = {"package": "torch", "path": "nowhere.py", "sha256": "0", "part": "file", "start": 0, "end": 5}
    path = written(tmp_path / "p.jsonl", row(1), {"question_id": 2, "category": "code", "source": source})
    with pytest.raises(LookupError, match="line 2: torch: nowhere.py is not installed"):
        prompts.load(path, Letters())


def test_a_compressed_file(tmp_path):
    path = tmp_path / "p.jsonl.gz"
    whole = gzip.compress(b"".join(json.dumps(row(i)).encode() + b"\n" for i in range(50)))
    path.write_bytes(whole)
    assert len(prompts.load(path, Letters()).names) == 50
    for broken in (whole[:-20], whole[:40] + b"\x00" * 9 + whole[49:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="p.jsonl.gz cannot be unpacked as gzip"):
            prompts.load(path, Letters())


# --------------------------------------------------------------------------------------------- what the model answers


def dialogue_of(tmp_path, line):
    """Kind, name and text of one row, in the template of Letters."""
    read = prompts.load(written(tmp_path / "p.jsonl", line), Letters("yes"))
    return read.kinds[0], read.names[0], text(read.ids[0])


@pytest.mark.parametrize("line, kind, name, said", [
    (row(81, "stem", ["one", "later"], reference=["x", "y"]), "stem", "81", "<user>one<bot>"),
    (row(81, "qa", ["one", "two"], answers=["1"]), "qa", "81", "<user>one<assistant>1<user>two<bot>"),
    (row(81, "qa", ["one", "two", "three"], answers=["1"]), "qa", "81", "<user>one<bot>"),
    (row(81, "qa", ["one"], answers=["1"]), "qa", "81", "<user>one<bot>"),
    ({"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "check(f)"}, "code", "HumanEval/0",
     "<user>def f():\n<bot>"),
    ({"prompt": "hello"}, "chat", "1", "<user>hello<bot>"),
    ({"messages": [{"role": "user", "content": "hello", "name": "ann"}]}, "chat", "1", "<user>hello<bot>"),
    ({"question_id": "m", "category": "b", "messages": [
        {"role": role, "content": content} for role, content in
        (("system", "short"), ("user", "one"), ("assistant", "1"), ("user", "two"))]}, "b", "m",
     "<system>short<user>one<assistant>1<user>two<bot>"),
])
def test_the_published_forms(tmp_path, line, kind, name, said):
    assert dialogue_of(tmp_path, line) == (kind, name, said)


def test_no_file_is_the_chat_file_for_a_tokenizer_with_a_template_and_else_the_familys():
    for name, same, tokenizer in (("", "chat", Letters("yes")), ("", "family", Letters())):
        read, expected = (prompts.load(each, tokenizer, first=1) for each in (name, same))
        assert read.names == expected.names and list(map(text, read.ids)) == list(map(text, expected.ids))
        assert prompts.check(name, bool(tokenizer.chat_template)) == prompts.check(same, chat=False)
    for tokenizer in (Letters(), Letters("yes")):
        read = prompts.load("family", tokenizer, first=1)
        assert len(set(read.kinds)) == len(read.kinds) == 8
        assert not any(text(ids).startswith("<user>") for ids in read.ids)  # its prompts are plain text


@pytest.mark.parametrize("pair", ["owner/of-the-hub", pytest.param("smollm2-135m", marks=needs_real_model)])
def test_enough_prompts_are_asked_of_the_file_that_each_target_reads(pair, monkeypatch):
    monkeypatch.setattr("lib.models.load._offline", lambda: False)
    wanted = {"prompts": "", "choose_prompts": 10, "judge_prompts": 30}
    parameters.prompts("prompts", wanted | {"pairs": ["base/small", "tiny"]})  # the family's file has 40 of each kind
    with pytest.raises(ValueError, match="kinds writing, .* have fewer than 10 . 30"):
        parameters.prompts("prompts", wanted | {"pairs": ["base/small", pair]})
    parameters.prompts("prompts", wanted | {"pairs": [pair], "prompts": "family"})


def test_the_chat_file_holds_prompts_to_choose_by_before_those_to_judge_by():
    names, kinds = prompts.check("chat", chat=True)
    second = {name for name, ids in zip(names, prompts.load("chat", Letters("yes")).ids) if "<assistant>" in text(ids)}
    assert len(names) == 312 and set(Counter(kinds).values()) == {24}
    for kind in set(kinds):
        own = [name for name, other in zip(names, kinds) if other == kind]
        assert own == [f"{kind}-{number:02}" for first in (1, 2) for number in range(first, 25, 2)]
        assert len(second & set(own[:12])) == len(second & set(own[12:])) == 4


def test_prompts_longer_than_the_window(tmp_path):
    path = written(tmp_path / "p.jsonl", row("short"), row("long", turns=["a much longer one"]))
    with pytest.raises(ValueError, match="line 2: the prompt has 17 tokens, 6 fit beside what is generated"):
        prompts.load(path, Letters(), 6)


def test_the_first_of_each_kind(tmp_path):
    path = written(tmp_path / "p.jsonl", *(row(i, "ab"[i % 2]) for i in range(8)))
    assert prompts.load(path, Letters(), first=2).names == ("0", "1", "2", "3")


@pytest.mark.parametrize("first", [0, -1])
def test_none_of_each_kind_is_no_choice(first):
    with pytest.raises(ValueError, match=f"first is {first}; give 1 or more"):
        prompts.load("", Letters(), first=first)


# --------------------------------------------------------------------------------------------------- sets of prompts


def test_prompts_are_split_by_kind_and_short_kinds_refused():
    whole = PromptSet(tuple(f"p{row}" for row in range(10)), tuple("ab" * 5), tuple(torch.arange(20).view(10, 2)))
    choosing, judging = whole.split(2, 3)
    assert choosing.names == ("p0", "p1", "p2", "p3") and judging.names == tuple(f"p{row}" for row in range(4, 10))
    assert whole.split(0, 1)[0].names == () and whole.split(0, 1)[1].names == ("p0", "p1")
    with pytest.raises(ValueError, match="kinds a, b have fewer than 3 \\+ 3 prompts"):
        whole.split(3, 3)
