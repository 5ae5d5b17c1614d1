"""Weights in fewer bits: int8 on a CPU by a linear layer of our own, 8 or 4 bit on a GPU by what transformers offers."""

import importlib.util

import torch
from torch import nn

from lib.models.checks import PairError, each_of
from lib.models.int8_linear import Int8Linear

NONE, INT8, INT4 = "none", "int8", "int4"
KINDS = (NONE, INT8, INT4)
GPU_PACKAGE = "bitsandbytes"


def quantize_int8(model) -> None:
    """Puts int8 layers in the place of all linear ones but the output layer, which may share the embedding's weight."""
    output = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child is not output:
                setattr(parent, name, Int8Linear(child))


def kinds_of(quantize: str) -> tuple[str, str]:
    """What "int8", or "int8|none" (target|drafter), says of target and drafter. PairError for anything else."""
    return each_of("quantize", quantize, KINDS)


def gpu_keywords(kind: str) -> dict[str, object]:
    """What `from_pretrained` takes to load in 8 or 4 bit on a GPU. PairError where the package for it is missing."""
    if importlib.util.find_spec(GPU_PACKAGE) is None:
        raise PairError(f"quantize {kind!r} on a GPU needs the package {GPU_PACKAGE}; install it, or load unquantised")
    from transformers import BitsAndBytesConfig

    asked = {"load_in_8bit": True} if kind == INT8 else {"load_in_4bit": True}
    return {"quantization_config": BitsAndBytesConfig(**asked)}


def check(kind: str, device: str | torch.device) -> None:
    """PairError where the device cannot have such weights."""
    if kind == INT4 and torch.device(device).type == "cpu":
        raise PairError(f"quantize {kind!r} is for GPUs; on device {str(device)!r} take {INT8!r} or {NONE!r}")
