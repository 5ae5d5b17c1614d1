"""A GGUF file's byte-level tokenizer gives the tokens that the model learned, and those that llama.cpp gives."""

import json
import random
import re
import warnings
from functools import cache

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoTokenizer

from lib.lab import provenance
from lib.models import gguf_files, gguf_tensors, gguf_tokenizer, packages
from lib.models.checks import PairError
from lib.models.gguf_tokenizer import COMPOSED, PATTERNS, WHOLE_FIRST, WITH_BOS, pre_tokenizer
from lib.models.load import _tokenizer as load_tokenizer
from lib.models.registry import Source
from lib.tests import tiny_gguf
from lib.tests.real_model import needs_real_model, real_pair

pytestmark = pytest.mark.filterwarnings("ignore:.* does not name its pre-tokenizer")
SMOLLM2 = {
    "\n\n1. One": [1116, 33, 30, 1963],
    "In 2024, 3.14 of 1,000": [788, 216, 34, 32, 34, 36, 28, 216, 35, 30, 33, 36, 282, 216, 33, 28, 32, 32, 32],
    "a  b   c\n\n\n\td": [81, 216, 278, 256, 265, 16506, 197, 84],
    "| 12 | 345 |\n|---|---|\n": [108, 216, 33, 34, 2504, 216, 35, 36, 37, 2504, 198, 108, 5583, 108, 5583, 108, 198],
    "def f(x):\n    return x ** 2 + 10\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 216, 34, 1232, 216, 33, 32,
                                           198],
    "漢字とかな 한국어 5月": [
        177, 137, 112, 36518, 7365, 118, 7365, 229, 7365, 120, 216, 33085, 246, 181, 130, 251, 183, 240, 129, 216, 37,
        14483, 226],
    "café ½ ٣ 🎉 don't": [83, 1939, 2756, 216, 16738, 216, 164, 113, 15107, 232, 227, 1326, 982]}
TEXT = "Hi 1234567, don't\n\n1. camelCase  x漢字\n"
PIECES = {  # of TEXT, by hand from the patterns; · stands for a space, ↵ for the end of a line
    "gpt-2": "Hi|·1234567|,|·don|'t|↵|↵|1|.|·camelCase|·|·x漢字|↵",
    "smollm": "Hi|·|1|2|3|4|5|6|7|,|·don|'t|↵↵|1|.|·camelCase|·|·x漢字|↵",
    "llama-bpe": "Hi|·|123|456|7|,|·don|'t|↵↵|1|.|·camelCase|·|·x漢字|↵",
    "qwen2": "Hi|·|1|2|3|4|5|6|7|,|·don|'t|↵↵|1|.|·camelCase|·|·x漢字|↵",
    "gpt-4o": "Hi|·|123|456|7|,|·don't|↵↵|1|.|·camel|Case|·|·x漢字|↵",
    "deepseek-v3": "Hi|·|123|456|7|,|·don|'t|↵↵|1|.|·camelCase|·|·x|漢字|↵",
    "deepseek-coder": "Hi|·|1|2|3|4|5|6|7|,|·don|'|t|↵|↵|1|.|·camelCase|·|·x|漢字|↵",
    "tiny_aya": "Hi|·|1|234|567|,|·don't|↵↵|1|.|·camel|Case|·|·x漢字|↵",
    "bloom": "Hi|·1234567|,|·don't|↵↵|1|.|·camelCase|·|·x漢字|↵",
    "default": "Hi|·|123|456|7|,|·don|'|t|↵|↵|1|.|·camelCase|·|·x漢字|↵"}
# Texts that llama.cpp's simpler patterns cut otherwise than the models' own: accents of other scripts, changes of case
# (it has one class for all letters), digits of other scripts, wide spaces, and the text before groups of three digits
MARKS, CASE = "[ŁЖ\u0900-\u0d7f\u0e31-\u0e4e\ufe0f]", "[^\\W\\d_A-Z][A-Z]"
OTHERWISE = dict.fromkeys("gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m tekken".split(), MARKS) | {
    "youtu": f"{MARKS}|{CASE}", "kimi-k2": f"{MARKS}|{CASE}", "tiny_aya": f"{MARKS}|{CASE}|\\d",
    "cohere2moe": f"{MARKS}|{CASE}|\\d", "superbpe": "[٣２]", "deepseek-llm": "\u3000", "deepseek-coder": "\u3000"}


@needs_real_model
@pytest.mark.parametrize("text", SMOLLM2)
def test_smollm2_reads_what_its_makers_tokenizer_reads(text):
    assert real_pair().tokenizer(text)["input_ids"] == SMOLLM2[text]


@needs_real_model
def test_the_model_card_counts_the_turns_that_byte_level_alone_reads_otherwise():
    ours, bytes_alone = (Tokenizer.from_str(real_pair().tokenizer.backend_tokenizer.to_str()) for _ in range(2))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rows = (provenance.HOME / "data" / "prompts" / "chat.jsonl").read_text().splitlines()
    turns = [turn for row in rows for turn in json.loads(row)["turns"]]
    other = sum(ours.encode(turn).ids != bytes_alone.encode(turn).ids for turn in turns)
    assert f"Of the {len(turns)} user turns in `data/prompts/chat.jsonl` {other} have other tokens" in (
        provenance.HOME / "data" / "models" / "README.md").read_text()


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_a_text(name):
    pieces = [TEXT[slice(*place)] for _, place in pre_tokenizer(name).pre_tokenize_str(TEXT)]
    assert "|".join(pieces).replace(" ", "·").replace("\n", "↵") == PIECES[name]


@pytest.mark.parametrize("name", PATTERNS)
def test_each_way_keeps_the_whole_text(name):
    tokenizer = built(tiny(name))
    for text in lines(40, seed=1):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize("name, count", [("qwen2", 1), ("llama-bpe", 2)])
def test_letters_and_their_accents_become_one_where_the_model_learned_that(name, count):
    pieces = built(tiny(name)).tokenize("e\u0301")
    assert (pieces == built(tiny(name)).tokenize("\u00e9")) == (count == 1)


def test_lists_name_known_ways():
    assert WHOLE_FIRST | WITH_BOS | COMPOSED <= PATTERNS.keys()


@pytest.mark.parametrize("name", [pytest.param("smollm2", marks=needs_real_model), *PATTERNS])
def test_llama_cpp_gives_the_same_tokens(name):
    llama = pytest.importorskip("llama_cpp")
    path = packages.SMOLLM2.file() if name == "smollm2" else tiny(name)
    try:
        theirs = llama.Llama(str(path), vocab_only=True, verbose=False)
    except ValueError:
        pytest.skip(f"this llama.cpp does not know {name}")
    ours = built(path)
    unlike = re.compile(OTHERWISE.get(name, "(?!)"))
    compared = [text for text in lines(400, seed=2) if not unlike.search(text)]
    for text in compared:
        assert ours(text, add_special_tokens=False)["input_ids"] == theirs.tokenize(
            text.encode(), add_bos=False, special=False), text
    assert len(compared) > 50


def test_an_unknown_way_is_refused_and_a_missing_one_warned_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tiny_gguf.write(tmp_path / "odd.gguf", pre="tomorrow")
    with pytest.raises(PairError, match="names the pre-tokenizer 'tomorrow' .tokenizer.ggml.pre., which is not known "
                                        "here; take the model as safetensors"):
        gguf_files.converted(path)
    for pre in (None, "default"):
        with pytest.warns(UserWarning, match="does not name its pre-tokenizer .*; convert the model again"):
            tokenizer = built(tiny_gguf.write(path, pre=pre))
        assert tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT) == \
            pre_tokenizer("default").pre_tokenize_str(TEXT)
    with warnings.catch_warnings(action="error"):
        built(tiny_gguf.write(path, pre="smollm"))


def test_files_that_were_converted_otherwise_are_converted_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tiny_gguf.write(tmp_path / "one.gguf")
    new = gguf_files.converted(path)
    monkeypatch.setattr(gguf_files, "CONVERSION", gguf_files.CONVERSION - 1)
    assert gguf_files.converted(path) != new and new.is_dir()


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "falcon", "gpt2"])
def test_what_was_converted_loads_as_it_was_built(tmp_path, monkeypatch, kind):
    """transformers has a tokenizer of its own for each of these types of models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tiny_gguf.write(tmp_path / "one.gguf", pre="llama-bpe")
    folder = gguf_files.converted(path)
    AutoConfig.for_model(kind).save_pretrained(folder)
    loaded, own = load_tokenizer(Source(str(folder), gguf=str(path))), built(path)
    assert loaded.backend_tokenizer.to_str() == own.backend_tokenizer.to_str()
    assert loaded("the")["input_ids"] == own("the")["input_ids"] == [0, len(tiny_gguf.TOKENS) - 1]


def test_a_sentencepiece_vocabulary_stays_as_transformers_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "t", "h", "e", "\u2581t",
              "he", "\u2581the"]
    path = tiny_gguf.write(
        tmp_path / "one.gguf", tokenizer="llama", tokens=tokens, types=(2, 3, 3, *[6] * 256), pre="default",
        merges=["\u2581 t", "h e", "\u2581t he"], more=lambda writer: writer.add_token_scores([0.0] * len(tokens)))
    own = AutoTokenizer.from_pretrained(tmp_path, gguf_file="one.gguf")
    loaded = load_tokenizer(Source(str(gguf_files.converted(path)), gguf=str(path)))
    for text in ("the the", "  he\n", "\u00e9 t<s>the"):
        assert loaded(text)["input_ids"] == own(text)["input_ids"]
    assert loaded("the")["input_ids"][-1] == len(tokens) - 1


@pytest.mark.parametrize("pre, said, added", [("llama-bpe", None, [0]), ("llama-bpe", False, []), ("qwen2", None, []),
                                              ("qwen2", True, [0])])
def test_a_text_begins_with_bos_where_the_file_or_its_way_says_so(tmp_path, pre, said, added):
    more = (lambda writer: None) if said is None else lambda writer: writer.add_add_bos_token(said)
    tokenizer = built(tiny_gguf.write(tmp_path / "one.gguf", pre=pre, more=more))
    assert tokenizer("t")["input_ids"][:-1] == added


def test_tokens_of_their_own_keep_their_ids(tmp_path):
    """Control tokens may have letters that no byte stands for; of normal tokens only merges of bytes are read."""
    own = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<think>", *tiny_gguf.TOKENS[2:], "hat"]
    tokenizer = built(tiny_gguf.write(tmp_path / "one.gguf", tokens=own, types=(3, 3, 4)))
    assert len(tokenizer) == len(own) and (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    text = "<think>the<｜end▁of▁sentence｜>"
    assert tokenizer(text)["input_ids"] == [2, own.index("the"), 1] and tokenizer.decode([2, 1]) == own[2] + own[1]
    assert tokenizer.decode([2, 1], skip_special_tokens=True) == "<think>"
    whole = built(tiny_gguf.write(tmp_path / "two.gguf", tokens=own, types=(3, 3, 4), pre="llama-bpe"))
    assert tokenizer("hat")["input_ids"] == [own.index(letter) for letter in "hat"]
    assert whole("hat", add_special_tokens=False)["input_ids"] == [own.index("hat")]


@pytest.mark.parametrize("options, says", [
    (dict(tokens=[*tiny_gguf.TOKENS, "the"]), "1 are listed twice"), (dict(merges=["t h", "no where"]), "`no` out of"),
    (dict(merges=["t h", "the"]), "substring not found")])
def test_lists_that_make_no_vocabulary(tmp_path, options, says):
    with pytest.raises(PairError, match=f"the tokenizer in .* cannot be read .*{says}.*; take the model as"):
        built(tiny_gguf.write(tmp_path / "odd.gguf", **options))


def built(path):
    return gguf_tokenizer.byte_level(path, gguf_tensors.header(path).metadata)


@cache
def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a vocabulary that learned across digits, signs and lines, so that each cut shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r".{1,24}|\n+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(
        [*lines(1500, seed=3), (provenance.HOME / "README.md").read_text()], trainers.BpeTrainer(
            vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
            special_tokens=tiny_gguf.TOKENS[:2]))
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(pair) for pair in model["merges"]]


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    tiny.folder = tmp_path_factory.mktemp("vocabularies")


@cache
def tiny(name: str):
    """A file with this way of cutting."""
    tokens, merges = vocabulary()
    return tiny_gguf.write(tiny.folder / f"{name}.gguf", pre=name, tokens=tokens, merges=merges)


def lines(count: int, seed: int) -> list[str]:
    """Generated lines: words, digits, runs of spaces and line ends, tables, code, signs, other scripts and emoji."""
    draw = random.Random(seed)
    parts = [
        ["the", "return", "don't", "WE'LL", "camelCase", "HTTPServer", "snake_case", "Foo'D", "x"],
        [str(draw.randint(0, 10**size)) for size in range(1, 12)] + ["3.14", "1,000", "x86", "½", "٣٤", "１２"],
        [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\n  ", " \n\n ", "\u00a0", "\u3000"],
        ["| 12 | 345 |\n|---|---|\n", "def f(x):\n    return {'a': [10, 2]}  # no\n\n", "a += b[1:-2];", "``` py\n"],
        list(",.!?;:()[]{}<>+-*/=^~|`@#$%&\"'") + ["...", "->", "//", "。", "，", "…", "“", "”", "€", "£"],
        ["漢字", "中文，标点", "かな", "カナ", "한국어", "ไทย", "नमस्ते", "Жизнь", "αβγ", "שלום", "مرحبا"],
        ["é", "naïve", "Straße", "ŁÓDŹ", "😀", "👍🏽", "👩‍💻", "🇩🇪", "✨"]]
    return [draw.choice(["", " "]).join(draw.choice(draw.choice(parts)) for _ in range(draw.randint(1, 12)))
            for _ in range(count)]
