"""GGUF files as models: `converted` makes bfloat16 safetensors of a file once, in the user's cache folder. gguf-py
reads it, dequantises its tensors and maps their names; transformers makes the configuration.
"""

import fcntl
import os
import sys
import warnings
from collections.abc import Iterator
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lib.models.checks import errors_of
from lib.models.files import PairError, home, shards, stem

CONVERSION = 3  # version of the conversion; folders of earlier versions stay
SAFETENSORS = "take the model as safetensors"
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "starcoder2")
ROPE_FACTORS = "rope_f"  # begins the names of rope_freqs, rope_factors_long and rope_factors_short
SCALING = "scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.finetuned"  # keys that are read
LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION, SIGN, LINES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# Letters with case in Unicode 11, without mathematical ones and some of Armenian, Georgian, Cyrillic and Latin
CASED = (r"[\p{Lu}\p{Ll}\p{Lt}&&[^" "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7ff\uab30-\uab68"
         "\U00010570-\U000105bc\U00010d50-\U00010d85\U00016e40-\U00016eff\U0001d400-\U0001df2a]]")
# How a byte-level vocabulary cuts text, by its name in tokenizer.ggml.pre, as in llama.cpp (src/llama-vocab.cpp). Each
# pattern cuts the pieces of the one before it; a match is a piece, and so is the text between two matches.
PATTERNS = {
    "default": (r"[\p{P}$+<=>^~|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (GPT_2,),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (r"\p{N}", GPT_2)),
    "falcon": (r"[\p{P}$`+<=>^~|]+", GPT_2, "[0-9][0-9][0-9]"),
    "llama-bpe": (CONTRACTION + "|" + SIGN + r"?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + LINES,),
    "qwen2": (CONTRACTION + "|" + SIGN + r"?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + LINES,),
    "qwen35": (CONTRACTION + "|" + SIGN + r"?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + LINES,),
    "gpt-4o": (f"{SIGN}?{UPPER}*{LOWER}+{CONTRACTION}?|{SIGN}?{UPPER}+{LOWER}*{CONTRACTION}?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + LINES,),
    "deepseek-llm": (r"[\r\n]", rf"\s?{CASED}+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                     r"\s+$", "[\u0800-\u9fa5\uac00-\ud7ff]+", r"\p{N}+"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u0800-\u9fa5\uac00-\ud7ff]+", r"\p{N}")}


def converted(path: Path) -> Path:
    """The folder of a GGUF file's model (or shard's) in transformers' layout, made on the first call, by one process at
    a time. PairError where the file is not whole, or something in it is not read.
    """
    digest = sha256()
    for shard in shards(path):
        with open(shard, "rb") as file:
            file_digest(file, lambda: digest)
    folder = home() / f"{stem(path)}-{digest.hexdigest()[:16]}-{CONVERSION}"
    if folder.is_dir():
        return folder
    home().mkdir(parents=True, exist_ok=True)
    with open(home() / ".lock", "w") as lock, TemporaryDirectory(dir=home()) as partial:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():  # another process may have made it meanwhile
            print(f"converting {path.name} to bfloat16 safetensors, once", file=sys.stderr, flush=True)
            for part in _model_and_tokenizer(path):
                part.save_pretrained(Path(partial, folder.name))
            os.replace(Path(partial, folder.name), folder)
    return folder


def _model_and_tokenizer(path: Path) -> tuple[object, object]:
    """The dequantised model in bfloat16, and the tokenizer."""
    first = shards(path)[0]
    location = dict(pretrained_model_name_or_path=first.parent, gguf_file=first.name, trust_remote_code=False)
    with errors_of(path):
        metadata, tensors = read(path)
        config = AutoConfig.from_pretrained(**location)
        config.tie_word_embeddings = all(tensor.name != "output.weight" for tensor in tensors)
        _scale_rotary(path, metadata, tensors, config)
        is_byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
        tokenizer = _byte_level(path, metadata) if is_byte_level else AutoTokenizer.from_pretrained(**location)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        weights = {tensor.name: torch.from_numpy(dequantised(tensor)).bfloat16()
                   for tensor in parameters(path, metadata, tensors, model)}
        model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    end_of_turn, end = metadata.get("tokenizer.ggml.eot_token_id"), model.generation_config.eos_token_id
    if end_of_turn is not None:
        model.generation_config.eos_token_id = list(dict.fromkeys([end, end_of_turn]))
    return model, tokenizer


class _Reader(gguf.GGUFReader):
    """gguf-py's reader, several times as fast as on numpy's memory map, and with an error at the file's end."""

    def _get(self, offset: int, dtype: np.dtype, count: int = 1, override_order: str | None = None) -> np.ndarray:
        return np.frombuffer(self.data, dtype, int(count), int(offset))


def read(path: Path) -> tuple[dict[str, object], list[gguf.ReaderTensor]]:
    """Metadata and tensors of a file or of all shards. PairError where its architecture is not read."""
    readers = [_Reader(file) for file in shards(path)]
    metadata = {key: field.contents() for key, field in readers[0].fields.items()}
    if (architecture := metadata.get("general.architecture")) not in ARCHITECTURES:
        raise PairError(f"{path} is of the architecture {architecture!r:.80} (general.architecture), and those that "
                        f"are read from GGUF are {', '.join(ARCHITECTURES)}; {SAFETENSORS}")
    return metadata, [tensor for reader in readers for tensor in reader.tensors]


def parameters(path: Path, metadata: dict, tensors: list[gguf.ReaderTensor], model) -> Iterator[gguf.ReaderTensor]:
    """A file's tensors as parameters of its model: with their names, order of rows and norms in transformers. PairError
    where the file lacks a parameter of the model, or has a tensor that is none.
    """
    config, architecture = model.config, metadata["general.architecture"]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    stored_names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    names = {stored_names.get_name(name, (".weight", ".bias")): name for name in model.state_dict()}
    tensors = {tensor.name: tensor for tensor in tensors if not tensor.name.startswith(ROPE_FACTORS)}
    if unlike := (names.keys() ^ tensors.keys()) - {"output.weight", None}:  # which a tied head has not
        raise PairError(f"{path} {'lacks' if min(unlike) in names else 'has'} tensor {min(unlike)!r:.80}, unlike a "
                        f"{config.model_type} model of transformers; give another file, or {SAFETENSORS}")
    heads = {"attn_q": config.num_attention_heads, "attn_k": getattr(config, "num_key_value_heads", None)}
    for name, tensor in tensors.items():
        role, data = name.split(".")[-2], tensor.data
        if architecture == "llama" and role in heads:  # llama.cpp has the two rows that a rotation takes side by side
            data = data.reshape(heads[role], -1, 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        tensor = tensor._replace(name=names[name], data=data)
        if architecture.startswith("gemma") and role.endswith("norm"):  # llama.cpp adds the 1 that the model adds
            tensor = tensor._replace(tensor_type=gguf.GGMLQuantizationType.F32, data=dequantised(tensor) - 1)
        yield tensor


def dequantised(tensor: gguf.ReaderTensor) -> np.ndarray:
    """float32 values of a tensor. NotImplementedError where its type is not read."""
    return np.require(gguf.dequantize(tensor.data, tensor.tensor_type), requirements="W")


def _scale_rotary(path: Path, metadata: dict, tensors: list[gguf.ReaderTensor], config) -> None:
    """Writes base and scaling of the rotary embedding into a configuration: linear, YaRN (Peng et al. 2023, eq. 17 to
    22) or Llama 3's factors of the wavelengths (Grattafiori et al. 2024). PairError for others.
    """
    prefix = f"{metadata['general.architecture']}.rope."
    rope = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    kind, factor = rope.get("scaling.type", "linear"), rope.get("scaling.factor") or rope.get("scale_linear") or 1.0
    refused = [f"rope.{key} {value!r:.40}" for key, value in rope.items()
               if key.startswith("scaling.") and key not in SCALING and kind != "none"]
    rotary = config.rope_parameters.get("full_attention", config.rope_parameters)
    rotary["rope_theta"] = rope.get("freq_base", rotary["rope_theta"])
    if kind == "yarn":
        window = rope.get("scaling.original_context_length", config.max_position_embeddings)
        rotary |= {"rope_type": kind, "factor": factor, "original_max_position_embeddings": window}
    elif kind == "linear" and factor != 1:
        rotary |= {"rope_type": kind, "factor": factor}
    elif kind not in ("none", "linear"):
        refused.append(f"rope.scaling.type {kind!r:.40}")
    for tensor in tensors:
        if tensor.name.startswith(ROPE_FACTORS) and (tensor.data != 1).any():
            is_scaled, factors = rotary["rope_type"] != "default", tensor.data
            rotary |= LLAMA_3 | {"factor": float(factors.max())}
            frequencies = rotary["rope_theta"] ** -(np.arange(len(factors)) / len(factors)) / factors
            theirs = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
            if is_scaled or "freqs" not in tensor.name or not np.allclose(theirs, frequencies, rtol=1e-5, atol=0):
                refused.append(f"tensor {tensor.name}, whose factors are not Llama 3's")
    if refused:
        raise PairError(f"{path} scales its rotary embedding by {refused[0]}, which is not read here; {SAFETENSORS}")


def _byte_level(path: Path, metadata: dict) -> PreTrainedTokenizerFast:
    """The tokenizer of a byte-level vocabulary. PairError where it names a pre-tokenizer that `PATTERNS` has not; a
    warning where it names none.
    """
    values = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    name = values.get("pre") or "default"
    if name not in PATTERNS:
        raise PairError(f"{path} names the pre-tokenizer {name!r:.80} (tokenizer.ggml.pre), and those known here are "
                        f"{', '.join(PATTERNS)}; {SAFETENSORS}")
    if name == "default":
        warnings.warn(f"{path} does not name its pre-tokenizer (tokenizer.ggml.pre), so its text may be cut into other "
                      f"tokens than the model learned; convert the model again, or {SAFETENSORS}", stacklevel=2)
    tokens, kinds = values["tokens"], values.get("token_type", ())
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.rsplit(" ", 1)) for merge in values["merges"]]
    is_llama = name == "llama-bpe"  # which does not merge a piece that is a token, and begins a text with BOS
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=is_llama))
    if name in ("qwen2", "qwen35"):  # whose models read Unicode's composed form of a text, unlike llama.cpp
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence([*splits, as_bytes]), decoders.ByteLevel()
    for kind, is_special in ((gguf.TokenType.CONTROL, True), (gguf.TokenType.USER_DEFINED, False)):
        tokenizer.add_tokens([AddedToken(token, special=is_special, normalized=False)
                              for token, token_kind in zip(tokens, kinds) if token_kind == kind])
    roles = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    special = {role: tokens[values[f"{key}_token_id"]] for key, role in roles.items() if f"{key}_token_id" in values}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=values.get("tokenizer.chat_template"), **special,
        add_bos_token=values.get("add_bos_token", is_llama), add_eos_token=values.get("add_eos_token", False))
