"""What a model needs and can check, by its configuration, before any weights are read."""

import torch

from lib.attention.registration import CHUNKED, FULL, SLIDING, least_span, takes_chains
from lib.models.checks import dtype_name


def sentence(name: str, config, parameters: int, dtype: torch.dtype) -> str:
    """Memory for weights, for a token's keys and values, and for what layers with a window keep beyond it; and whether
    trees or chains are checked.
    """
    config, size = config.get_text_config(), dtype.itemsize
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or [SLIDING if least_span(config) else FULL] * layers
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    width = getattr(config, "head_dim", None) or config.hidden_size // max(1, config.num_attention_heads)
    attending = [kind for kind in kinds if kind not in ("linear_attention", "conv", "moe", "mlp")]
    each, near = 2 * heads * width * size, sum(kind in (SLIDING, CHUNKED) for kind in attending)
    told = (f"{name}: {parameters / 1e6:,.0f} M parameters, {parameters * size / 2**30:.2f} GiB in "
            f"{dtype_name(dtype)}; {each * len(attending) / 1024:.1f} KiB of keys and values per token of a row's text "
            "and tree")
    if near:
        told += (f", {each * near / 1024:.1f} of them in layers that read the last {least_span(config)} tokens alone "
                 "and keep all")
    if takes_chains(config):
        return f"{told}; {len(kinds) - len(attending)} layers keep a state per row and draft token; it checks chains"
    return f"{told}; it checks trees"
