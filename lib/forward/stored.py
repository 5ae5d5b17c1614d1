"""A GGUF file's own numbers as a model's weights: each block keeps its few bits, rearranged once into panels."""

from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from lib.forward.packed import STORED, PackedEmbedding, PackedLinear
from lib.kernels import panels
from lib.models import gguf_blocks, gguf_files, gguf_tensors
from lib.models.checks import PairError
from lib.models.gguf_blocks import Stored

TABLE, OUTPUT = "token_embd.weight", "output.weight"
WHOLE = {TABLE: "model.embed_tokens", "output_norm.weight": "model.norm", OUTPUT: "lm_head"}
IN_LAYER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
# Gemma's layers have a norm after attention as well, and files hold one more than the weights of its norms.
OF_GEMMA = IN_LAYER | {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                       "post_ffw_norm": "post_feedforward_layernorm"}
LEFT_OUT = {"rope_freqs.weight"}  # what the configuration says as well


def take_weights(model, path: Path) -> None:
    """Gives a model of Llama's or Gemma's kind, read from a GGUF file, the numbers that the file stores, for float32
    activations.

    path: of the file, or of its first shard.

    PairError where a tensor has a type whose blocks are not read, or the model has weights that no tensor fills.
    """
    headers = {file: gguf_tensors.header(file) for file in gguf_files.shards(path)}
    architecture = headers[path].metadata.get("general.architecture")
    turned, of_gemma = architecture == "llama", str(architecture).startswith("gemma")
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    left, table = {name for name, _ in model.named_parameters()}, model.get_input_embeddings()
    for stored in chain.from_iterable(gguf_tensors.tensors(file, header) for file, header in headers.items()):
        if stored.name in LEFT_OUT:
            continue
        part, kind = _place(stored, path, OF_GEMMA if of_gemma else IN_LAYER), stored.name.rpartition(".")[2]
        role = stored.name.split(".")[-2]
        rows = _rows(stored.shape[0], heads[role]) if turned and role in heads else slice(None)
        if stored.name in (TABLE, OUTPUT):
            rows = slice(table.num_embeddings)
        if kind == "bias" or len(stored.shape) == 1:
            values = torch.from_numpy(gguf_blocks.floats(stored)[rows].copy()) - int(of_gemma)
            values = nn.Parameter(values, requires_grad=False)
            setattr(model.get_submodule(part), kind, values)
        else:
            _replace(model, part, _packed(stored, rows))
        left -= {f"{part}.{kind}"} | ({"lm_head.weight"} if stored.name == TABLE else set())
    if model.config.tie_word_embeddings or not any(OUTPUT in header.tensors for header in headers.values()):
        table = model.get_input_embeddings()
        if isinstance(table, PackedEmbedding):
            model.lm_head = PackedLinear(table.panels, torch.float32)
        else:
            model.lm_head.weight = table.weight
    model.quantised = STORED
    if left:
        raise PairError(f"{path} lacks weights for {', '.join(sorted(left)[:3])}; give a file that holds the whole "
                        "model, or take another dtype")


def _place(stored: Stored, path: Path, in_layer: dict[str, str]) -> str:
    """The name of the module that a tensor's values belong to; in_layer: of a layer's parts by their names in files."""
    if stored.name in WHOLE:
        return WHOLE[stored.name]
    first, _, rest = stored.name.partition(".")
    layer, _, role = rest.partition(".")
    if first == "blk" and role.rpartition(".")[0] in in_layer:
        return f"model.layers.{layer}.{in_layer[role.rpartition('.')[0]]}"
    raise PairError(f"{path} holds tensor {stored.name!r}, which is no part of a model of Llama's or Gemma's kind; "
                    "take dtype 'auto' or 'int8'")


def _replace(model, name: str, weights: panels.Panels | Tensor) -> None:
    """Puts weights into a linear layer or an embedding."""
    parent, _, child = name.rpartition(".")
    module = model.get_submodule(name)
    if isinstance(weights, Tensor):
        module.weight = nn.Parameter(weights, requires_grad=False)
    elif isinstance(module, nn.Embedding):
        packed = PackedEmbedding(weights, torch.float32, getattr(module, "embed_scale", None))
        setattr(model.get_submodule(parent), child, packed)
    else:
        setattr(model.get_submodule(parent), child, PackedLinear(weights, torch.float32, module.bias))


def _packed(stored: Stored, rows: Tensor | slice) -> panels.Panels | Tensor:
    """A matrix in panels, its rows in this order; float32 numbers that 16 bits do not hold stay as they are."""
    if stored.type in gguf_blocks.BLOCKS:
        form = gguf_blocks.unpacked(stored)
        parts = (form.quants, form.scale, form.offset)
        return panels.of_blocks(*(None if x is None else torch.from_numpy(x)[rows] for x in parts), form.bits)
    weight = torch.from_numpy(gguf_blocks.floats(stored))[rows].contiguous()
    return weight if (held := panels.of_16_bits(weight)) is None else held


def _rows(count: int, heads: int) -> Tensor:
    """The order in which transformers has the rows of queries and keys: llama.cpp's pairs of a rotation lie side by
    side, transformers' half a head apart.
    """
    return torch.arange(count).view(heads, -1, 2).transpose(1, 2).flatten()
