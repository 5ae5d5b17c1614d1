"""Models of published sizes with random weights, for what models cost: time and memory do not depend on the weights.

What they accept means nothing; set their costs beside the acceptance of a pair that has learnt.
"""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from lib import attention
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
    """The configuration of a size of `SIZES`, with its first `layers` layers alone if given.

    PairError for an unknown size, or a number of layers that it has not.
    """
    if name not in SIZES:
        raise PairError(f"size {name!r} is unknown; choose one of {', '.join(SIZES)}, as random:NAME or "
                        "random:NAME@LAYERS")
    found = dict(zip(COLUMNS, SIZES[name]))
    if layers is not None:
        if not (layers.isdecimal() and 1 <= int(layers) <= found["num_hidden_layers"]):
            raise PairError(f"random:{name}@{layers} asks for {layers!r} layers; give 1 to "
                            f"{found['num_hidden_layers']}, or leave @{layers} out for all")
        found["num_hidden_layers"] = int(layers)
    return LlamaConfig(**found, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None)


def build(own: LlamaConfig, name: str, dtype: torch.dtype, device: str | torch.device):
    """A model of that configuration that verifies trees, made on the device; the same weights each time."""
    attention.register()
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(own, dtype=dtype, attn_implementation=attention.TREE)
    model.name_or_path = name  # an empty one would be taken for the current folder
    return model.eval()
