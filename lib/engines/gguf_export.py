"""GGUF files for llama.cpp: a target's file in a plain number format, and a draft model that shares its tokenizer.

The values are those of this project's models: what a file's blocks stand for, rounded to bfloat16 (see
`lib.models.gguf_files`). Vectors stay float32, as llama.cpp wants them.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
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
WRITERS = {"general.architecture", "general.file_type", "general.alignment"}  # keys that a writer writes itself
Tensors = Iterable[tuple[str, np.ndarray, gguf.GGMLQuantizationType]]  # name, data as stored, and its type


def target_file(source: Path, dtype: str, folder: Path = WEIGHTS) -> Path:
    """The file of a target in float32 or bfloat16, with all that its own file says besides; made where it is not."""
    files = shards(source)
    made = _place(source.stem, dtype, folder, files)
    if not made.exists():
        readers = [gguf.GGUFReader(file) for file in files]
        writer = gguf.GGUFWriter(None, readers[0].fields["general.architecture"].contents(), use_temp_file=True)
        _copy(readers[0], writer, lambda key: not key.startswith(("GGUF.", "split.")))
        _write(writer, ((tensor.name, tensor.data, tensor.tensor_type) for reader in readers
                        for tensor in reader.tensors), dtype, made)
    return made


def drafter_file(source: Path, target: Path, dtype: str, folder: Path = WEIGHTS) -> Path:
    """The file of a draft model of the Llama type in the folder `source`, with the tokenizer of a target's file; made
    where it is not. ValueError for a model of another type, and for another number of tokens.
    """
    made = _place(source.name, dtype, folder, [*sorted(source.glob("*.safetensors")), target])
    if made.exists():
        return made
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
    config, reader = model.config, gguf.GGUFReader(target)
    if (config.model_type != "llama" or config.rope_parameters["rope_type"] != "default" or config.attention_bias
            or config.mlp_bias):
        raise ValueError(f"{source} is no plain Llama model (a {config.model_type}, or with biases or scaled "
                         "positions), and others are not written here; convert it with llama.cpp's own script")
    tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
    if tokens != config.vocab_size:
        raise ValueError(f"{source} has {config.vocab_size} tokens and {target} {tokens}; give a draft model that "
                         "shares the target's tokenizer")
    writer = gguf.GGUFWriter(None, "llama", use_temp_file=True)
    for add, value in ((writer.add_name, source.name), (writer.add_vocab_size, config.vocab_size),
                       (writer.add_block_count, config.num_hidden_layers),
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
    _write(writer, _llama_tensors(model), dtype, made)
    return made


def _llama_tensors(model) -> Tensors:
    """The weights by GGUF's names; rows of queries and keys in GGUF's order, which puts the two rows side by side that
    a rotation takes together.
    """
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, values in model.state_dict().items():
        data = values.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            data = data.reshape(-1, 2, model.config.head_dim // 2, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            yield names.get_name(name, (".weight",)), data, F32


def _place(name: str, dtype: str, folder: Path, files: Sequence[Path]) -> Path:
    """Where the file made of these files is: its name changes with them."""
    told = "".join(f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns} " for file in files)
    return folder / f"{name}-{sha256(told.encode()).hexdigest()[:12]}.{dtype}.gguf"


def _copy(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, wanted: Callable[[str], bool]) -> None:
    """Copies keys with their types."""
    for key, field in reader.fields.items():
        if wanted(key) and key not in WRITERS:
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], of)


def _write(writer: gguf.GGUFWriter, tensors: Tensors, dtype: str, made: Path) -> None:
    """Writes a file, which has its name when it is whole."""
    kind, file_type = FORMATS[dtype]
    writer.add_file_type(file_type)
    for name, data, stored in tensors:
        rounded, plain = quantize(dequantize(data, stored), BF16), kind == F32 or data.ndim == 1
        writer.add_tensor(name, dequantize(rounded, BF16) if plain else rounded, raw_dtype=F32 if plain else kind)
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_name(f"{made.name}.{os.getpid()}")
    writer.write_header_to_file(part)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(made)
