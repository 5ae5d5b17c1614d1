"""A GGUF file's byte-level tokenizer gives the tokens that the model learned."""

import random

import pytest
from transformers import AutoConfig, AutoTokenizer

from lib.models import gguf
from lib.models.load import _tokenizer as load_tokenizer
from lib.models.registry import GGUF, Source
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
DIGITS = "Hi|·|1|2|3|4|5|6|7|,|·don|'t|↵↵|1|.|·camelCase|·|·x漢字|↵"
PIECES = {  # of TEXT, by hand from the patterns of llama.cpp; · stands for a space, ↵ for the end of a line
    "gpt-2": "Hi|·1234567|,|·don|'t|↵|↵|1|.|·camelCase|·|·x漢字|↵",
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "qwen2", "qwen35"), DIGITS),
    "llama-bpe": "Hi|·|123|456|7|,|·don|'t|↵↵|1|.|·camelCase|·|·x漢字|↵",
    "gpt-4o": "Hi|·|123|456|7|,|·don't|↵↵|1|.|·camel|Case|·|·x漢字|↵",
    **dict.fromkeys(("default", "falcon"), "Hi|·|123|456|7|,|·don|'|t|↵|↵|1|.|·camelCase|·|·x漢字|↵"),
    "deepseek-llm": "Hi|·|1234567|,|·don|'|t|↵|↵|1|.|·camelCase|·|·x|漢字|↵",
    "deepseek-coder": "Hi|·|1|2|3|4|5|6|7|,|·don|'|t|↵|↵|1|.|·camelCase|·|·x|漢字|↵"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def built(path):
    return gguf._byte_level(path, gguf.read(path)[0])


@needs_real_model
@pytest.mark.parametrize("text", SMOLLM2)
def test_smollm2_reads_what_its_makers_tokenizer_reads(monkeypatch, text):
    monkeypatch.undo()  # the user's cache
    assert real_pair().tokenizer(text)["input_ids"] == SMOLLM2[text]


@pytest.mark.parametrize("name", gguf.PATTERNS)
def test_each_pre_tokenizer_cuts_as_its_pattern_and_keeps_the_text(tmp_path, name):
    tokenizer = built(tiny_gguf.write(tmp_path / "one.gguf", pre=name))
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)
    assert "|".join(TEXT[slice(*span)] for _, span in pieces).replace(" ", "·").replace("\n", "↵") == PIECES[name]
    draw = random.Random(1)
    parts = [*SMOLLM2, TEXT, " ", "\n", "\r\n", "WE'LL", "HTTPServer", "١٢", "नमस्ते", "Жизнь", "\u3000", "👩\u200d💻"]
    for text in ("".join(draw.choices(parts, k=6)) for _ in range(40)):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    is_composed = tokenizer.tokenize("e\u0301") == tokenizer.tokenize("\u00e9")  # into one letter
    assert is_composed == name.startswith("qwen"), "where the model learned that"


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_file_without_the_name_of_its_pre_tokenizer_is_warned_of(tmp_path, pre):
    with pytest.warns(UserWarning, match="does not name its pre-tokenizer .*; convert the model again"):
        built(tiny_gguf.write(tmp_path / "one.gguf", pre=pre))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "falcon", "gpt2"])
def test_what_was_converted_loads_as_it_was_built(tmp_path, kind):
    """transformers has a tokenizer of its own for each of these types of models."""
    path = tiny_gguf.write(tmp_path / "one.gguf", pre="llama-bpe")
    folder = gguf.converted(path)
    AutoConfig.for_model(kind).save_pretrained(folder)
    loaded, tokenizer = load_tokenizer(Source(GGUF, str(folder), path.name, str(path), gguf=str(path))), built(path)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert loaded("the")["input_ids"] == tokenizer("the")["input_ids"] == [0, len(tiny_gguf.TOKENS) - 1]


def test_a_sentencepiece_vocabulary_is_as_transformers_reads_it(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "t", "h", "e", "\u2581t",
              "he", "\u2581the"]
    path = tiny_gguf.write(
        tmp_path / "one.gguf", tokenizer="llama", tokens=tokens, types=(2, 3, 3, *[6] * 256), pre="default",
        merges=["\u2581 t", "h e", "\u2581t he"], more=lambda writer: writer.add_token_scores([0.0] * len(tokens)))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="one.gguf")
    loaded = load_tokenizer(Source(GGUF, str(gguf.converted(path)), path.name, str(path), gguf=str(path)))
    for text in ("the the", "  he\n", "\u00e9 t<s>the"):
        assert loaded(text)["input_ids"] == theirs(text)["input_ids"]
    assert loaded("the")["input_ids"][-1] == len(tokens) - 1


@pytest.mark.parametrize("pre, add_bos, bos", [("llama-bpe", None, [0]), ("llama-bpe", False, []), ("qwen2", None, []),
                                               ("qwen2", True, [0])])
def test_a_text_begins_with_bos_where_the_file_or_its_pre_tokenizer_has_it(tmp_path, pre, add_bos, bos):
    more = (lambda writer: None) if add_bos is None else lambda writer: writer.add_add_bos_token(add_bos)
    tokenizer = built(tiny_gguf.write(tmp_path / "one.gguf", pre=pre, more=more))
    assert tokenizer("t")["input_ids"][:-1] == bos


def test_control_and_added_tokens_keep_their_ids(tmp_path):
    """Control tokens may have letters that no byte stands for; of normal tokens only merges of bytes are read."""
    tokens = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<think>", *tiny_gguf.TOKENS[2:], "hat"]
    tokenizer = built(tiny_gguf.write(tmp_path / "one.gguf", tokens=tokens, types=(3, 3, 4)))
    assert len(tokenizer) == len(tokens) and (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    text = "<think>the<｜end▁of▁sentence｜>"
    assert tokenizer(text)["input_ids"] == [2, tokens.index("the"), 1]
    assert tokenizer.decode([2, 1]) == tokens[2] + tokens[1]
    assert tokenizer.decode([2, 1], skip_special_tokens=True) == "<think>"
    whole = built(tiny_gguf.write(tmp_path / "two.gguf", tokens=tokens, types=(3, 3, 4), pre="llama-bpe"))
    assert tokenizer("hat")["input_ids"] == [tokens.index(letter) for letter in "hat"]
    assert whole("hat", add_special_tokens=False)["input_ids"] == [tokens.index("hat")]
