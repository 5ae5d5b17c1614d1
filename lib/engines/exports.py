"""Weights as engines read them: folders in transformers' layout, EAGLE-3 heads in that of their authors, GGUF files.

Weights keep the values that this project's own loop decodes with, so that texts and counts can be compared: those of a
GGUF file are what its blocks stand for (see `lib.models.gguf`). What is not there yet is made under WEIGHTS.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM

from lib.drafters.heads import files
from lib.drafters.registry import folder_of
from lib.engines.environments import HOME
from lib.forward.reduced import rows_of
from lib.models import gguf as gguf_models

WEIGHTS = HOME / "weights"  # safe to delete
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
F32, BF16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16
FILE_TYPES = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}
WRITERS = ("general.architecture", "general.file_type", "general.alignment")  # keys that a writer writes itself


def folder(model, target=None) -> Path:
    """The folder of a model with its tokenizer; model, target: as `load_pair` gives them.

    target: of a draft model, whose tokenizer stands in where its folder has none. ValueError for a model that is in no
    folder or GGUF file on this machine.
    """
    if file := getattr(model, "gguf_file", ""):
        return gguf_models.converted(Path(file))
    source = Path(model.name_or_path)
    if not source.is_dir():
        raise ValueError(f"{model.name_or_path!r} is not a folder or a GGUF file on this machine; engines here read no "
                         "other: save the model in a folder, and give that")
    if target is None or (source / TOKENIZER[0]).exists():
        return source
    made = WEIGHTS / f"{source.name}-with-tokenizer"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for file in [*source.iterdir(), *(folder(target) / name for name in TOKENIZER)]:
        if file.is_file():
            (made / file.name).symlink_to(file.resolve())
    return made


def draft_model(pair) -> str:
    """The folder of a pair's draft model. ValueError for a target alone."""
    if pair.draft_model is None:
        raise ValueError(f"{pair.target_name} has no draft model; give one after a bar, as in {pair.target_name}|NAME")
    return str(folder(pair.draft_model, pair.target))


def eagle3_head(pair) -> str:
    """A folder with the EAGLE-3 head of a pair's target."""
    return str(write_head(folder_of(pair.target_name, "eagle3"), pair.target, WEIGHTS / f"{pair.target_name}-eagle3"))


def ngram_tables(pair) -> str:
    """The folder of the n-gram tables of a pair's target."""
    return str(folder_of(pair.target_name, files.NGRAMS).resolve())


def write_head(source: str | Path, target, made: Path) -> Path:
    """Writes the EAGLE-3 head in a folder for a target to `made`, in the target's dtype, with the rows of the target's
    output layer for the tokens that it drafts. Returns `made`. Checked with vLLM 0.32.

    ValueError for another kind of head, and for one that reads a hidden state that engines do not hand over.
    """
    head, layers = files.load("eagle3", source, target), target.config.get_text_config().num_hidden_layers
    features = head.config.feature_layers
    if features != sorted({*features} - {layers}):  # engines sort them, and read the last one before the final norm
        raise ValueError(f"the head in {source} reads the hidden states {features} of a target of {layers} layers; "
                         f"engines hand over different ones below {layers}, in ascending order; train the head anew "
                         "with `python -m lib training heads --kinds eagle3`")
    if head.lm_head is None:
        head.lm_head = rows_of(target.get_output_embeddings(), slice(None) if head.tokens is None else head.tokens)
    files.save(head, made, target.dtype)
    return made


def target_file(source: Path, dtype: str) -> Path:
    """A target's GGUF file, which is no shard, in float32 or bfloat16, with all its other keys."""
    made = WEIGHTS / f"{source.stem}-{source.stat().st_mtime_ns:x}.{dtype}.gguf"
    if not made.exists():
        reader = gguf.GGUFReader(source)
        kind = reader.fields["general.architecture"].contents()
        _write(made, gguf.GGUFWriter(None, kind, use_temp_file=True), reader, ("general", kind, "tokenizer"), dtype,
               ((tensor.name, dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors))
    return made


def drafter_file(pair, target: Path) -> Path:
    """The GGUF file, in float32, of a pair's draft model, with the tokenizer of a target's file. ValueError for a model
    that is no Llama model, or has another number of tokens.
    """
    source = Path(draft_model(pair))
    made = WEIGHTS / f"{source.name}-{(source / 'config.json').stat().st_mtime_ns:x}.float32.gguf"
    if made.exists():
        return made
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
    config, reader, writer = model.config, gguf.GGUFReader(target), gguf.GGUFWriter(None, "llama", use_temp_file=True)
    tokens, rotary = len(reader.fields["tokenizer.ggml.tokens"].data), config.rope_parameters
    if (config.model_type, config.vocab_size, rotary["rope_type"]) != ("llama", tokens, "default"):
        raise ValueError(f"{source} is not written as GGUF: give a Llama model without scaled positions and with the "
                         f"{tokens} tokens of {target}, or convert it with llama.cpp's own script")
    for key, value in dict(
            name=source.name, vocab_size=tokens, block_count=config.num_hidden_layers,
            context_length=config.max_position_embeddings, embedding_length=config.hidden_size,
            feed_forward_length=config.intermediate_size, head_count=config.num_attention_heads,
            head_count_kv=config.num_key_value_heads, key_length=config.head_dim, value_length=config.head_dim,
            rope_dimension_count=config.head_dim, rope_freq_base=rotary["rope_theta"],
            layer_norm_rms_eps=config.rms_norm_eps).items():
        getattr(writer, f"add_{key}")(value)
    names, tensors = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers), {}
    for name, values in model.named_parameters():  # where embedding and head are one, once
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # rows that a rotation takes together, side by side
            values = values.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).reshape(values.shape)
        tensors[names.get_name(name, (".weight",))] = values.detach().numpy()
    _write(made, writer, reader, ("tokenizer",), "float32", tensors.items())
    return made


def _write(made: Path, writer: gguf.GGUFWriter, reader: gguf.GGUFReader, keys: tuple[str, ...], dtype: str,
           tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes tensors, vectors in float32, and the reader's keys of these parts; no file is left unfinished."""
    writer.add_file_type(FILE_TYPES[dtype])
    for key, field in reader.fields.items():
        if key.partition(".")[0] in keys and key not in WRITERS:
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for name, values in tensors:
        rounded, plain = quantize(values, BF16), dtype == "float32" or values.ndim == 1
        writer.add_tensor(name, dequantize(rounded, BF16) if plain else rounded, raw_dtype=F32 if plain else BF16)
    made.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(part := made.with_suffix(".part"))
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(made)
