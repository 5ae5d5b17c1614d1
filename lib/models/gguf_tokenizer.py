"""The tokenizer of a GGUF file with a byte-level vocabulary, from the lists and settings in its header.

`tokenizer.ggml.pre` names how such a vocabulary cuts text before it merges bytes, not the patterns. Names and patterns
are those of llama.cpp (src/llama-vocab.cpp). Where its pattern only resembles the one of the model's tokenizer.json,
as with upper and lower case, the latter is here. Each pattern cuts the pieces of the one before it; a match is a piece,
and so is the text between two matches.
"""

import warnings
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lib.models.checks import PairError, first_line

BYTE_LEVEL = "gpt2"  # as `tokenizer.ggml.model`
CONTROL, USER_DEFINED = 3, 4  # types of tokens that are found in the text before it is cut
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

DEFAULT = "default"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s+(?!\S)|\s+"
LINES = r"\s*[\r\n]+"
NUMBER, NUMBERS, THREES = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}"
MARKS = r"[\p{P}$+<=>^~|]+"
SENTENCE = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
EAST_ASIA = "[\u0800-\u9fa5\uac00-\ud7ff]+"
# Letters with case in Unicode 11, without mathematical ones and some of Armenian, Georgian, Cyrillic and Latin
CASED = (r"[\p{Lu}\p{Ll}\p{Lt}&&[^" "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7ff\uab30-\uab68"
         "\U00010570-\U000105bc\U00010d50-\U00010d85\U00016e40-\U00016eff\U0001d400-\U0001df2a]]")
AFTER_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
SIGNS = rf"{AFTER_SIGN}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES}|{SPACES}"
WIDE_SIGNS = "\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f"
WIDE = f"[\uac00-\ud7a3\u3131-\u318e]+|[{WIDE_SIGNS}]+|[\u3105-\u312f]+|{HAN_AND_KANA}"


def _words(numbers: str, *, contractions: str = f"{CONTRACTIONS}|", word: str = r"\p{L}+",
           other: str = r"[^\s\p{L}\p{N}]+[\r\n]*", lines: str = LINES, spaces: str = SPACES) -> str:
    """Words with the sign or space before them."""
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?{word}|{numbers}| ?{other}|{lines}|{spaces}"


def _cased(numbers: str, ending: str = f"{CONTRACTIONS}?", without: str = "", others: str = r"[\r\n/]*") -> str:
    """Words that end where a capital follows a small letter."""
    both = rf"\p{{Lm}}\p{{Lo}}\p{{M}}{without}"
    large, small = rf"[\p{{Lu}}\p{{Lt}}{both}]", rf"[\p{{Ll}}{both}]"
    return _words(numbers, contractions=rf"[^\r\n\p{{L}}\p{{N}}]?{large}*{small}+{ending}|",
                  word=f"{large}+{small}*{ending}", other=rf"[^\s\p{{L}}\p{{N}}]+{others}")


HALVES = "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"\s"
LLAMA3, QWEN2, GPT4O = _words(THREES), _words(NUMBER), _cased(THREES)
WAYS: tuple[tuple[str, tuple[str, ...]], ...] = (  # names, patterns
    (DEFAULT, (MARKS, GPT2, NUMBERS, "[0-9][0-9][0-9]")),
    ("gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
     "modern-bert mpt olmo jais trillion granite-docling exaone4", (GPT2,)),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", (NUMBER, GPT2)),
    ("falcon", (MARKS.replace("$", "$`"), GPT2, "[0-9][0-9][0-9]")),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 chatglm-bpe",
     (LLAMA3,)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open megrez grok-2 stablelm2", (QWEN2,)),
    ("qwen35", (_words(NUMBER, word=r"[\p{L}\p{M}]+", other=r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
    ("minicpm5", (THREES, _words(NUMBERS))),
    ("laguna", (r"[^\n]+|\n+", QWEN2)),
    ("ufakzeka", (_words(NUMBER, contractions=""),)),
    ("seed-coder", (_words(NUMBER, other=r"[^\s\p{L}\p{N}]+"),)),
    ("bailingmoe bailingmoe2 llada-moe", (_words(NUMBER, lines=r"\s*[\r\n]"),)),
    ("exaone-moe", (_words(NUMBER, word=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", other=r"[^\s\p{L}\p{N}]+[\r\n/]?",
                           lines=r"\s*[\r\n]"),)),
    ("jais-2", (_words(THREES, spaces=HALVES),)),
    ("tekken", (_cased(NUMBER, ending=""),)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m", (GPT4O,)),
    ("tiny_aya cohere2moe", (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)),
    ("youtu", (WIDE, _cased(NUMBER))),
    ("kimi-k2", (r"\p{Han}+|" + _cased(THREES, without=r"&&[^\p{Han}]", others=r"[\r\n]*"),)),
    ("deepseek-llm", (r"[\r\n]", rf"\s?{CASED}+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                      r"\s+$", EAST_ASIA, NUMBERS)),
    ("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIA, NUMBER)),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", (THREES, HAN_AND_KANA, SIGNS)),
    ("spark2_5", (THREES, HAN_AND_KANA, rf"{AFTER_SIGN}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{SPACES}", NUMBER)),
    ("superbpe", (NUMBERS, r"(?=(\d{3})+(?!\d))")),
    ("poro-chat bloom gpt3-finnish", (SENTENCE,)),
    ("viking", (SENTENCE, NUMBER)),
    ("chameleon", ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", NUMBER, r"[\p{P}!-/:-@\[-`{-~]", GPT2)),
)
PATTERNS = {name: patterns for names, patterns in WAYS for name in names.split()}
WHOLE_FIRST = frozenset(  # a piece that is a token is not merged from its bytes
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano minicpm5 youtu tekken "
    "glm4 granite-embed-multi-97m".split())
WITH_BOS = frozenset(  # where the file does not say whether a text begins with BOS
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon".split())
COMPOSED = frozenset(("qwen2", "qwen35"))  # whose models read Unicode's composed form of a text, NFC, unlike llama.cpp


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The way of this name. KeyError for other names than those of `PATTERNS`."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(path: Path, metadata: dict[str, object]):
    """transformers' tokenizer of a header's metadata whose tokenizer model is `BYTE_LEVEL`. PairError where the file
    names a pre-tokenizer that is not known, or its lists make no tokenizer; a warning where it names none.
    """
    name = metadata.get("tokenizer.ggml.pre") or DEFAULT
    if name not in PATTERNS:
        raise PairError(f"{path} names the pre-tokenizer {name!r:.80} (tokenizer.ggml.pre), which is not known here; "
                        "take the model as safetensors")
    if name == DEFAULT:
        warnings.warn(f"{path} does not name its pre-tokenizer (tokenizer.ggml.pre), so its text may be cut into other "
                      "tokens than the model learned; convert the model again, or take it as safetensors", stacklevel=2)
    given = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    try:
        tokens, kinds = given["tokens"], given.get("token_type", ())
        vocabulary = {token: index for index, token in enumerate(tokens)}
        if len(vocabulary) < len(tokens):
            raise ValueError(f"of its {len(tokens)} tokens {len(tokens) - len(vocabulary)} are listed twice")
        merges = [(merge[:at], merge[at + 1 :]) for merge in given["merges"] for at in [merge.index(" ", 1)]]
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in WHOLE_FIRST))
    except KeyError as error:
        raise _unreadable(path, f"the file holds no tokenizer.ggml.{error.args[0]}") from None
    except Exception as error:  # whatever the package raises of lists that make no vocabulary
        raise _unreadable(path, first_line(error)) from error
    if name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, kinds) if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False)
                          for token, kind in zip(tokens, kinds) if kind == USER_DEFINED])
    ids = {role: given.get(f"{part}_token_id", -1) for role, part in ROLES.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=given.get("tokenizer.chat_template"),
        **{role: tokens[index] for role, index in ids.items() if 0 <= index < len(tokens)},
        add_bos_token=given.get("add_bos_token", name in WITH_BOS),
        add_eos_token=given.get("add_eos_token", False))


def _unreadable(path: Path, why: str) -> PairError:
    return PairError(f"the tokenizer in {path} cannot be read ({why}); take the model as safetensors")
