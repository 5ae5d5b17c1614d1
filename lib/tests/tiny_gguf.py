"""Tiny GGUF files: a random Llama of two layers with a byte-level tokenizer, as converters write them."""

from pathlib import Path
from typing import Callable, Sequence

import gguf
import numpy as np
from tokenizers import pre_tokenizers

FLOATS = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
HIDDEN, FEED, HEADS, KEY_HEADS = 64, 96, 4, 2
TOKENS = ["<|start|>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
MERGES = ["t h", "th e"]
TEMPLATE = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"


def write(path: Path, *, architecture: str = "llama", quantised: gguf.GGMLQuantizationType | None = None,
          tokenizer: str = "gpt2", left_out: str = "", seed: int = 0, window: int = 128, pre: str | None = "gpt-2",
          tokens: Sequence[str] = TOKENS, merges: Sequence[str] = MERGES, types: Sequence[int] = (3, 3),
          end_of_turn: int | None = None, shards: int = 0,
          more: Callable[[gguf.GGUFWriter], object] = lambda writer: None) -> Path:
    """Writes a model. quantised: the type of its matrices, by default that of `encoded`; left_out: a tensor that the
    file lacks; types: of the first tokens, where 3 is control; others are normal. more: writes what else the file has;
    shards: tensors of each, all in one file with 0.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=shards)
    rng = np.random.default_rng(seed)
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(window)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(tokenizer)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([*types, *[1] * (len(tokens) - len(types))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)
    writer.add_chat_template(TEMPLATE)
    more(writer)
    shared, width = KEY_HEADS * HIDDEN // HEADS, HIDDEN
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (width, HIDDEN), "attn_k": (shared, HIDDEN),
            "attn_v": (shared, HIDDEN), "attn_output": (HIDDEN, width), "ffn_gate": (FEED, HIDDEN),
            "ffn_up": (FEED, HIDDEN), "ffn_down": (HIDDEN, FEED)}.items()}
    for name, shape in shapes.items():
        if name != left_out:
            values = (len(shape) == 1) + 0.2 * rng.standard_normal(shape).astype(np.float32)
            kind = gguf.GGMLQuantizationType.Q8_0 if quantised is None else quantised
            if len(shape) == 1 or kind in FLOATS:
                writer.add_tensor(f"{name}.weight", values.astype(FLOATS[kind] if len(shape) > 1 else np.float32))
            elif kind in gguf.quants._type_traits:
                writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
            else:  # bytes of the right number
                row = gguf.quants.quant_shape_to_byte_shape(shape, kind)
                writer.add_tensor(f"{name}.weight", np.zeros(row, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
