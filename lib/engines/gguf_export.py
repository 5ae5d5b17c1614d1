"""GGUF files for llama.cpp: a target's file in a plain number format, and a draft model that shares its tokenizer.

The values are those of this project's models: what a file's blocks stand for, rounded to bfloat16 (see
`lib.models.gguf_files`). Vectors stay float32, as llama.cpp wants them.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM

from lib.engines.environments import HOME
from lib.models.gguf_files import shards

WEIGHTS = HOME / "weights"
F32, BF16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16
FORMATS = {"float32": (F32, gguf.LlamaFileType.ALL_F32), "bfloat16": (BF16, gguf.LlamaFileType.MOSTLY_BF16)}
SPLIT = "split."  # keys of one of several files
Tensors = Iterable[tuple[str, np.ndarray, gguf.GGMLQuantizationType]]  # name, data as stored, and its type


def target_file(source: Path, dtype: str, folder: Path = WEIGHTS) -> Path:
    """The file of a target in float32 or bfloat16, with all that its own file says besides; made where it is not."""
    made = folder / f"{source.stem}.{dtype}.gguf"
    if not made.exists():
        readers = [gguf.GGUFReader(file) for file in shards(source)]
        writer = gguf.GGUFWriter(None, _text(readers[0], "general.architecture"))
        _copy(readers[0], writer, lambda key: not key.startswith(("GGUF.", SPLIT)))
        _write(writer, [(tensor.name, tensor.data, tensor.tensor_type) for reader in readers
                        for tensor in reader.tensors], dtype, made)
    return made


def drafter_file(folder: Path, target: Path, dtype: str, into: Path = WEIGHTS) -> Path:
    """The file of a draft model of the Llama type in a folder, with the tokenizer of a target's file; made where it is
    not. ValueError for a model of another type, and for another number of tokens.
    """
    made = into / f"{folder.parent.name}-{folder.name}.{dtype}.gguf"
    if made.exists():
        return made
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    config, reader = model.config, gguf.GGUFReader(target)
    plain = config.rope_parameters["rope_type"] == "default" and not (config.attention_bias or config.mlp_bias)
    if config.model_type != "llama" or not plain:
        raise ValueError(f"{folder} holds a {config.model_type} with biases or scaled positions, or of another type "
                         "than llama, which is not written as GGUF; convert it with llama.cpp's own script")
    tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
    if tokens != config.vocab_size:
        raise ValueError(f"{folder} has {config.vocab_size} tokens and {target} {tokens}; give a draft model that "
                         "shares the target's tokenizer")
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_name(folder.name)
    for add, value in ((writer.add_block_count, config.num_hidden_layers), (writer.add_vocab_size, config.vocab_size),
                       (writer.add_context_length, config.max_position_embeddings),
                       (writer.add_embedding_length, config.hidden_size),
                       (writer.add_feed_forward_length, config.intermediate_size),
                       (writer.add_head_count, config.num_attention_heads),
                       (writer.add_head_count_kv, config.num_key_value_heads),
                       (writer.add_key_length, config.head_dim), (writer.add_value_length, config.head_dim),
                       (writer.add_rope_dimension_count, config.head_dim),
                       (writer.add_rope_freq_base, config.rope_parameters["rope_theta"]),
                       (writer.add_layer_norm_rms_eps, config.rms_norm_eps)):
        add(value)
    _copy(reader, writer, lambda key: key.startswith("tokenizer."))
    _write(writer, list(_llama_tensors(model)), dtype, made)
    return made


def _llama_tensors(model) -> Tensors:
    """The weights by GGUF's names; of queries and keys the rows of a head in GGUF's order, which puts the two halves
    that a rotation takes together side by side.
    """
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        data = values.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            rows, width = data.shape
            data = data.reshape(-1, 2, model.config.head_dim // 2, width).swapaxes(1, 2).reshape(rows, width)
        yield names.get_name(name, (".weight",)), np.ascontiguousarray(data), F32


def _text(reader: gguf.GGUFReader, key: str) -> str:
    return reader.fields[key].contents()


def _copy(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, wanted) -> None:
    """Copies keys with their types, but for what the writer says itself."""
    for key, field in reader.fields.items():
        if wanted(key) and key not in ("general.architecture", "general.file_type"):
            writer.add_key_value(key, field.contents(), field.types[0],
                                 field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None)


def _write(writer: gguf.GGUFWriter, tensors, dtype: str, made: Path) -> None:
    """Writes one tensor after the other, and names the file when it is whole."""
    kind, file_type = FORMATS[dtype]
    writer.add_file_type(file_type)
    of = [F32 if data.ndim == 1 else kind for _, data, _ in tensors]
    for (name, data, stored), written in zip(tensors, of):
        shape = gguf.quant_shape_from_byte_shape(data.shape, stored) if data.dtype == np.uint8 else data.shape
        writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * (4 if written == F32 else 2), written)
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_name(f"{made.name}.{os.getpid()}")
    writer.write_header_to_file(part), writer.write_kv_data_to_file(), writer.write_ti_data_to_file()
    for (_, data, stored), written in zip(tensors, of):
        rounded = quantize(dequantize(data, stored), BF16)
        writer.write_tensor_data(rounded if written == BF16 else dequantize(rounded, BF16))
    writer.close()
    part.replace(made)
