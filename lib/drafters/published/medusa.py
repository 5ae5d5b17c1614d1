"""Medusa's published layout: tensors "HEAD.BLOCK.linear.weight" and ".bias", "HEAD.BLOCKS.weight".

Head and block count from 0; what stands behind the blocks is the head's own output layer, which heads of the layout's
version "2" leave out: they share the target's. Repositories that hold a whole model put "medusa_head." before these
names.
"""

import re
from pathlib import Path

from torch import Tensor, nn
from transformers import LlamaConfig

from lib.drafters.heads.medusa import MedusaHeads
from lib.drafters.heads.store import check_fits, fill, ready
from lib.drafters.published.files import check_counts, read

PREFIX = "medusa_head."


def load(where, folder: Path, target) -> nn.Module:
    """Medusa heads for a target. ValueError lists what is missing, unexpected or of another shape.

    Of config.json medusa_num_layers counts, and medusa_num_heads as the least number of heads: some published ones say
    2 and hold 5.
    """
    given, tensors = read(where, folder)
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()
               if name.startswith(PREFIX) or not _has_prefix(tensors)}
    check_counts(where, given, "medusa_num_heads", "medusa_num_layers")
    heads = [int(match[1]) for name in tensors if (match := re.match(r"(\d+)\.\d+\.", name))]
    ours, layers = target.config.get_text_config(), given.get("medusa_num_layers", 1)
    own_output = any(re.fullmatch(rf"\d+\.{layers}\.weight", name) for name in tensors)
    config = LlamaConfig(hidden_size=ours.hidden_size, num_attention_heads=1, vocab_size=ours.vocab_size, kind="medusa",
                         medusa_num_heads=max([given.get("medusa_num_heads", 1), *(head + 1 for head in heads)]),
                         medusa_num_layers=layers, medusa_vocab_size=ours.vocab_size if own_output else None)
    if {"hidden_size", "vocab_size"} <= given.keys():
        check_fits(where, given["hidden_size"], given["vocab_size"], target)
    made = MedusaHeads(config)
    fill(where, made, tensors, lambda name: published_name(name, config.medusa_num_layers))
    return ready(made, folder, target)


def published_name(name: str, layers: int) -> str:
    """What the published layout calls a tensor of `MedusaHeads`."""
    part, head, *rest = name.split(".")
    return ".".join([head, *rest] if part == "stacks" else [head, str(layers), *rest])


def _has_prefix(tensors: dict[str, Tensor]) -> bool:
    return any(name.startswith(PREFIX) for name in tensors)
