"""Prompt files: what is read, what is refused by name of file and line, and what is drawn from a set."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models import prompts
from lib.models.prompts import PromptSet, digest_of

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<bot>"


class Letters:
    """A tokenizer whose tokens are characters."""

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __call__(self, text):
        return {"input_ids": [ord(character) for character in text if character != "\x00"]}

    def apply_chat_template(self, turns, **settings):
        assert settings == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        return [ord(character) for turn in turns for character in f"<{turn['role']}>{turn['content']}<bot>"]


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
    assert read.too_long == ()


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(tmp_path_factory, texts):
    path = written(tmp_path_factory.mktemp("any") / "p.jsonl", *(row(i, turns=[turn]) for i, turn in enumerate(texts)))
    read = prompts.load(path, lambda text: {"input_ids": list(map(ord, text))})
    assert ["".join(map(chr, ids)) for ids in read.ids] == texts  # line separators inside a text are no lines


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row(1)).encode() + b"\r\n" + json.dumps(row(2)).encode() + b"\r\n")
    assert prompts.load(path, Letters()).names == ("1", "2")


@pytest.mark.parametrize("line, says", [
    (b"{'a': 1}", "line 3 is no JSON .* at column 2"),
    (b"[1, 2]", "line 3 is a list"),
    (b"\xff\xfe", "line 3 is no UTF-8 .byte 0."),
    ({"question_id": 1, "turns": ["x"]}, "line 3 lacks category; it has question_id, turns"),
    ({}, "line 3 lacks question_id, category, turns; it has nothing"),
    (row(None), "line 3: question_id is None"),
    (row(7, kind=["a"]), r"line 3: .*category \['a'\]"),
    (row(7, turns="hello"[:0]), r"line 3: turns is \[\]"),
    ({"question_id": 7, "category": "a", "turns": "hello"}, "line 3: turns is 'hello'; give a list"),
    ({"question_id": 7, "category": "a", "turns": [1]}, r"line 3: turns is \[1\]"),
    (row("1"), "line 3: question_id '1' is in line 1 already"),
    (row(7, turns=[" \n"]), "line 3: the prompt is empty"),
    (row(7, turns=["\x00"]), "line 3: the tokenizer makes no token"),
    (rb'{"question_id": 7, "category": "a", "turns": ["a \ud83d"]}', r"line 3: turns holds '\\ud83d', half of a character"),
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
    with pytest.raises(FileNotFoundError, match="give a file"):
        prompts.load(tmp_path, Letters())
    with pytest.raises(ValueError, match="holds no prompt"):
        prompts.load(written(tmp_path / "empty.jsonl", b"\n"), Letters())


def test_a_source_that_is_not_installed_is_named_with_its_line(tmp_path):
    source = {"package": "torch", "path": "nowhere.py", "sha256": "0", "part": "file", "start": 0, "end": 5}
    path = written(tmp_path / "p.jsonl", row(1), {"question_id": 2, "category": "code", "source": source})
    with pytest.raises(LookupError, match="line 2: torch: nowhere.py is not installed"):
        prompts.load(path, Letters())


# -------------------------------------------------------------------------------------------------------- tokenising


def test_a_chat_template_is_used_where_there_is_one(tmp_path):
    path = written(tmp_path / "p.jsonl", row(1))
    assert text(prompts.load(path, Letters(TEMPLATE)).ids[0]) == "<user>hello<bot>"
    assert text(prompts.load(path, Letters(TEMPLATE), chat=False).ids[0]) == "hello"
    assert text(prompts.load(path, Letters(), chat=True).ids[0]) == "hello"


def test_a_real_tokenizers_template(tmp_path):
    from lib.tests.models.test_models import make_tokenizer

    tokenizer = make_tokenizer(extra=["<bot>"])
    tokenizer.chat_template = TEMPLATE
    path = written(tmp_path / "p.jsonl", row(1, turns=["the cat sat"]))
    ids = prompts.load(path, tokenizer).ids[0]
    assert tokenizer.decode(ids) == "<user>the cat sat<bot>" and ids[-1] == tokenizer.convert_tokens_to_ids("<bot>")


def test_prompts_longer_than_the_window(tmp_path):
    path = written(tmp_path / "p.jsonl", row("short"), row("long", turns=["a much longer one"]))
    with pytest.raises(ValueError, match="line 2: the prompt has 17 tokens, 6 fit beside what is generated"):
        prompts.load(path, Letters(), 6)
    shorter = prompts.load(path, Letters(), 6, too_long="shorten")
    assert [text(ids) for ids in shorter.ids] == ["hello", "er one"] and shorter.too_long == ("long",)
    fewer = prompts.load(path, Letters(), 6, too_long="skip")
    assert (fewer.names, fewer.too_long) == (("short",), ("long",))
    with pytest.raises(ValueError, match="none of its prompts has 2 tokens or fewer"):
        prompts.load(path, Letters(), 2, too_long="skip")
    with pytest.raises(ValueError, match="0 fit"):
        prompts.load(path, Letters(), 0, too_long="shorten")
    with pytest.raises(ValueError, match="too_long is 'drop'"):
        prompts.load(path, Letters(), too_long="drop")


def test_the_first_of_each_kind(tmp_path):
    path = written(tmp_path / "p.jsonl", *(row(i, "ab"[i % 2]) for i in range(8)))
    assert prompts.load(path, Letters(), first=2).names == ("0", "1", "2", "3")


@pytest.mark.parametrize("first", [0, -1])
def test_none_of_each_kind_is_no_choice(first):
    with pytest.raises(ValueError, match=f"first is {first}; give 1 or more"):
        prompts.load("", Letters(), first=first)


def test_the_familys_own_prompts_are_plain_text_of_every_kind():
    read = prompts.load("", Letters(TEMPLATE), first=1)
    assert len(set(read.kinds)) == len(read.kinds) == 8
    assert not any(text(ids).startswith("<user>") for ids in read.ids)


# --------------------------------------------------------------------------------------------------- sets of prompts


def made(kinds, shift=0):
    names = [f"p{i}" for i in range(len(kinds))]
    ids = [torch.tensor([i + shift, 7]) for i in range(len(kinds))]
    return PromptSet(tuple(names), tuple(kinds), tuple(ids), digest_of(names, kinds, ids))


def test_the_digest_tells_sets_apart():
    whole = made("aabb")
    assert whole.select(range(4)).digest == whole.digest == made("aabb").digest
    others = [made("aaba"), made("aabb", shift=1), whole.select([0, 1, 2]), whole.select([1, 0, 2, 3])]
    assert len({whole.digest, *(other.digest for other in others)}) == 5
