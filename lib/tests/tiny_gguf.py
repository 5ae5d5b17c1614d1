"""Tiny GGUF files as converters write them: a random model of two layers with a byte-level tokenizer."""

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as TensorType
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

HIDDEN, FEED, HEADS, KEY_HEADS = 64, 96, 4, 2
TOKENS = ["<|start|>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
MERGES = ["t h", "th e"]
TEMPLATE = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"


def model(kind: str = "llama", *, seed: int = 0, num_tokens: int = len(TOKENS), **settings):
    """A random float32 model of transformers, whose weights bfloat16 holds."""
    config = AutoConfig.for_model(kind, **(dict(
        vocab_size=num_tokens, hidden_size=HIDDEN, intermediate_size=FEED, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, rms_norm_eps=1e-5, max_position_embeddings=128,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=None) | settings))
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    for name, values in made.named_parameters():
        mean = float(values.ndim == 1 and name.endswith("weight") and not kind.startswith("gemma"))  # of a norm
        values.data = (mean + 0.2 * torch.randn(values.shape, generator=generator)).bfloat16().float()
    return made


def write(path: Path, source=None, *, architecture: str = "llama", quantised: TensorType = TensorType.Q8_0,
          tokenizer: str = "gpt2", left_out: str = "", seed: int = 0, window: int = 128, pre: str | None = "gpt-2",
          tokens: Sequence[str] = TOKENS, merges: Sequence[str] = MERGES, types: Sequence[int] = (3, 3),
          end_of_turn: int | None = None, shards: int = 0,
          more: Callable[[gguf.GGUFWriter], object] = lambda writer: None) -> Path:
    """Writes a model, by default a Llama. quantised: the type of its matrices; left_out: a tensor that the file lacks;
    types: of the first tokens, where 3 is control; others are normal. more: writes what else the file has; shards:
    tensors of each, all in one file with 0.
    """
    source = model(seed=seed, num_tokens=len(tokens), max_position_embeddings=window) if source is None else source
    config, writer = source.config, gguf.GGUFWriter(path, architecture, split_max_tensors=shards)
    for key, value in dict(
            name="tiny", block_count=2, context_length=config.max_position_embeddings, embedding_length=HIDDEN,
            feed_forward_length=FEED, head_count=HEADS, head_count_kv=KEY_HEADS,
            key_length=getattr(config, "head_dim", HIDDEN // HEADS), layer_norm_rms_eps=1e-5, layer_norm_eps=1e-5,
            vocab_size=len(tokens), tokenizer_model=tokenizer,
            rope_freq_base=10000.0, tokenizer_pre=pre, token_list=tokens, token_merges=merges, bos_token_id=0,
            token_types=[*types, *[1] * (len(tokens) - len(types))], eos_token_id=1, eot_token_id=end_of_turn,
            chat_template=TEMPLATE).items():
        if value is not None:
            getattr(writer, f"add_{key}")(value)
    more(writer)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds.get(architecture, gguf.MODEL_ARCH.LLAMA), 2)
    for parameter, values in source.named_parameters():
        name = names.get_name(parameter, (".weight", ".bias"))
        heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}.get(name.split(".")[-2])
        if architecture == "llama" and heads:  # the two rows that a rotation takes, side by side
            values = values.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(values.shape)
        values = values.detach().numpy() + float(architecture.startswith("gemma") and name.endswith("norm.weight"))
        kind = TensorType.F32 if values.ndim == 1 else quantised
        if left_out and name.startswith(left_out):
            continue
        try:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        except NotImplementedError:  # bytes of the right number
            row_bytes = gguf.quants.quant_shape_to_byte_shape(values.shape, kind)
            writer.add_tensor(name, np.zeros(row_bytes, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
