"""Models of published sizes with random weights, to measure costs: time and memory do not depend on the weights.

Their acceptance means nothing; combine their costs with the acceptance of a trained pair.
"""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from lib.attention.registration import TREE, register
from lib.models.checks import PairError

SEED = 0  # of the weights
COLUMNS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
           "vocab_size", "tie_word_embeddings")
# As their makers' config.json files give them (Grattafiori et al. 2024; Ben Allal et al. 2025; Miao et al. 2024).
SIZES = {
    "llama-3-70b": (8192, 28672, 80, 64, 8, 128256, False),
    "llama-3-8b": (4096, 14336, 32, 32, 8, 128256, False),
    "llama-3.2-1b": (2048, 8192, 16, 32, 8, 128256, True),
    "llama-68m": (768, 3072, 2, 12, 12, 32000, False),
    "smollm2-1.7b": (2048, 8192, 24, 32, 32, 49152, True),
    "smollm2-135m": (576, 1536, 30, 9, 3, 49152, True),
}


def config(name: str, layers: str | None = None) -> LlamaConfig:
    """The configuration of a size of `SIZES`, with `layers` layers if given.

    PairError for an unknown size, or more layers than it has.
    """
    if name not in SIZES:
        raise PairError(f"size {name!r} is unknown; choose one of {', '.join(SIZES)}, as random:NAME or "
                        "random:NAME@LAYERS")
    values = dict(zip(COLUMNS, SIZES[name]))
    if layers is not None:
        if not (layers.isdecimal() and 1 <= int(layers) <= values["num_hidden_layers"]):
            raise PairError(f"random:{name}@{layers} asks for {layers!r} layers; give 1 to "
                            f"{values['num_hidden_layers']}, or leave @{layers} out for all")
        values["num_hidden_layers"] = int(layers)
    return LlamaConfig(**values, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None)


def build(settings: LlamaConfig, name: str, dtype: torch.dtype, device: str | torch.device):
    """A model of that configuration with tree attention, made on the device; its weights are the same each time."""
    register()
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation=TREE)
    model.name_or_path = name  # an empty one would be taken for the current folder
    return model.eval()
