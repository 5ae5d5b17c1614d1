"""The tokenizer of a GGUF file with a byte-level vocabulary, from the lists and settings in its header."""

import warnings
from pathlib import Path

from lib.models import gguf_pretokenizers
from lib.models.checks import PairError, first_line
from lib.models.gguf_pretokenizers import DEFAULT, PATTERNS

BYTE_LEVEL = "gpt2"  # as `tokenizer.ggml.model`
CONTROL, USER_DEFINED = 3, 4  # types of tokens that are found in the text before it is cut
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def byte_level(path: Path, metadata: dict[str, object]):
    """transformers' tokenizer of a header's metadata whose tokenizer model is `BYTE_LEVEL`. PairError where the file
    names a pre-tokenizer that is not known, or its lists make no tokenizer; a warning where it names none.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    name = _pre_tokenizer(path, metadata)
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    try:
        tokens, kinds = own["tokens"], own.get("token_type", ())
        vocabulary = {token: index for index, token in enumerate(tokens)}
        if len(vocabulary) < len(tokens):
            raise ValueError(f"of its {len(tokens)} tokens {len(tokens) - len(vocabulary)} are listed twice")
        merges = [(merge[:at], merge[at + 1 :]) for merge in own["merges"] for at in [merge.index(" ", 1)]]
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in gguf_pretokenizers.WHOLE_FIRST))
    except KeyError as error:
        raise _unreadable(path, f"the file holds no tokenizer.ggml.{error.args[0]}") from None
    except Exception as error:  # whatever the package raises of lists that make no vocabulary
        raise _unreadable(path, first_line(error)) from error
    if name in gguf_pretokenizers.COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = gguf_pretokenizers.pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, kinds) if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False)
                          for token, kind in zip(tokens, kinds) if kind == USER_DEFINED])
    ids = {role: own.get(f"{part}_token_id", -1) for role, part in ROLES.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=own.get("tokenizer.chat_template"),
        **{role: tokens[index] for role, index in ids.items() if 0 <= index < len(tokens)},
        add_bos_token=own.get("add_bos_token", name in gguf_pretokenizers.WITH_BOS),
        add_eos_token=own.get("add_eos_token", False))


def _pre_tokenizer(path: Path, metadata: dict[str, object]) -> str:
    """The name of a file's pre-tokenizer."""
    name = metadata.get("tokenizer.ggml.pre") or DEFAULT
    if name not in PATTERNS:
        raise PairError(f"{path} names the pre-tokenizer {name!r:.80} (tokenizer.ggml.pre), which is not known here; "
                        "take the model as safetensors")
    if name == DEFAULT:
        warnings.warn(f"{path} does not name its pre-tokenizer (tokenizer.ggml.pre), so its text may be cut into other "
                      "tokens than the model learned; convert the model again, or take it as safetensors", stacklevel=2)
    return name


def _unreadable(path: Path, why: str) -> PairError:
    return PairError(f"the tokenizer in {path} cannot be read ({why}); take the model as safetensors")
