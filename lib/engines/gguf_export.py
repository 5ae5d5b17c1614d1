"""GGUF files for llama.cpp: a target's file in a plain number format, and a draft model that shares its tokenizer.

The values are those of this project's models: what a file's blocks stand for, rounded to bfloat16 (see
`lib.models.gguf`). Vectors stay float32, as llama.cpp wants them. A file is made where it is not.
"""

from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM

from lib.engines.exports import WEIGHTS

F32, BF16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16
FILE_TYPES = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}
WRITERS = ("general.architecture", "general.file_type", "general.alignment")  # keys that a writer writes itself


def target_file(source: Path, dtype: str, folder: Path = WEIGHTS) -> Path:
    """A target's file, which is no shard, in float32 or bfloat16, with all that it says besides."""
    made = folder / f"{source.stem}-{source.stat().st_mtime_ns:x}.{dtype}.gguf"
    if not made.exists():
        reader = gguf.GGUFReader(source)
        kind = reader.fields["general.architecture"].contents()
        _write(made, gguf.GGUFWriter(None, kind, use_temp_file=True), reader, ("general", kind, "tokenizer"), dtype,
               ((tensor.name, dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors))
    return made


def drafter_file(source: Path, target: Path, dtype: str, folder: Path = WEIGHTS) -> Path:
    """The file of a draft model of the Llama type in the folder `source`, with the tokenizer of a target's file.
    ValueError for a model of another type or number of tokens.
    """
    made = folder / f"{source.name}-{(source / 'config.json').stat().st_mtime_ns:x}.{dtype}.gguf"
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
    _write(made, writer, reader, ("tokenizer",), dtype, tensors.items())
    return made


def _write(made: Path, writer: gguf.GGUFWriter, reader: gguf.GGUFReader, keys: tuple[str, ...], dtype: str,
           tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes tensors, and the reader's keys of these parts; the file has its name when it is whole."""
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
