"""Models that can verify a tree: the attention "tree" for transformers, and one forward pass over a tree's nodes."""

import functools
from contextlib import contextmanager
from inspect import getmodule, getsource, signature
from threading import RLock
from typing import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lib.attention.masks import SharedMask, causal
from lib.attention.operator import prefix_list, tree_attention

TREE = "tree"  # the name under which transformers finds tree attention: attn_implementation="tree"
FULL, SLIDING = "full_attention", "sliding_attention"  # as configurations name layers
COMBINED = "hybrid", "hybrid_sliding"  # layers with attention and a state
RECURRENT = {"linear_attention", "conv", *COMBINED}  # kinds of layers whose state is that of one text
UNSUPPORTED = "position_bias", "indices", "block_indices"  # what some models pass to their attention


def register() -> None:
    """Teaches transformers the name "tree", for attention and for masks (else it would ignore padding)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(TREE, attention_forward)
    AttentionMaskInterface.register(TREE, sdpa_mask)


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, *, tree_mask=None,
                      prefix_length=None, tree_backend="auto", **kwargs):
    """The attention function of a model's layers: tree attention where `tree_mask` is given, else the same as "sdpa".

    tree_mask: without `prefix_length`, the tree follows all keys but its own. Rows of different lengths are
        right-padded, with one `prefix_length` per row, and take no padding mask.
    prefix_length: without `tree_mask`, the queries are a chain after that prefix.
    Returns ([B, mq, Hq, d], None).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if tree_mask is None and prefix_length is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    if unknown := [name for name in UNSUPPORTED if kwargs.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} passes {', '.join(unknown)}, which tree attention does not support")
    window, sinks, softcap = window_of(module, kwargs), kwargs.get("s_aux"), kwargs.get("softcap")
    if prefix_length is None:
        prefix_length = key.shape[2] - getattr(tree_mask, "visible", tree_mask).shape[-1]
    prefix, nodes = prefix_list(prefix_length, query.shape[0]), query.shape[2]
    plain = sinks is None and softcap is None and (window is None or nodes <= window)
    if tree_mask is None and not any(prefix) and plain:
        key, value = key[:, :, :nodes], value[:, :, :nodes]
        return sdpa_attention_forward(module, query, key, value, None, 0.0, scaling, is_causal=True)
    mask = causal(nodes, 0, query.device) if tree_mask is None else tree_mask
    output = tree_attention(query, key, value, mask, torch.tensor(prefix), scale=scaling, backend=tree_backend,
                            window=window, sinks=sinks, softcap=softcap)
    return output.transpose(1, 2).contiguous(), None


def window_of(module, passed: dict) -> int | None:
    """The number of last positions that an attention layer lets a token see, its own included; None for all.

    passed: the arguments of its attention.
    """
    config, layer, window = getattr(module, "config", None), getattr(module, "layer_idx", None), "sliding_window"
    kinds = getattr(config, "layer_types", None)
    if config is None or not kinds and window in passed:
        return passed.get(window)
    kind = kinds[layer] if kinds and layer is not None else next(iter(layer_kinds(config)))
    return passed.get(window) or config.sliding_window if kind in (SLIDING, COMBINED[1]) else None


def tree_forward(model, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, *,
                 logits_to_keep: int | Tensor = 0, output_hidden_states: bool = False):
    """One forward pass of a registered model over a block of tree nodes that follow each row's committed tokens.

    tokens: int64[B, m]. depth: int64[m] or [B, m]; the position ids are prefix + depth.
    tree_mask: bool[m, mk] or [B, m, mk] with mk = cache.pending + m, or None for a causal block, which sees all
        pending nodes.
    cache: a TreeCache, empty for a prefill. The other arguments, and the outputs, are the model's.
    """
    lengths = cache.lengths if len(cache.lengths) else tokens.new_zeros(tokens.shape[0])
    if tree_mask is None and (cache.pending or any(cache.rows.as_list)):
        tree_mask = causal(tokens.shape[1], cache.pending, tokens.device)
    return model(
        input_ids=tokens, position_ids=lengths[:, None].to(tokens.device) + depth,
        attention_mask=tokens.new_zeros(0, 1, 1, 1, dtype=torch.bool),  # transformers then builds no mask
        **{_cache_argument(type(model)): cache}, use_cache=True,
        tree_mask=None if tree_mask is None else SharedMask(tree_mask),
        prefix_length=torch.tensor(cache.rows.as_list or [0]), logits_to_keep=logits_to_keep,
        output_hidden_states=output_hidden_states)


@functools.cache
def _cache_argument(kind: type) -> str:
    """The name that a class of models gives its cache. Reading a signature takes longer than a small model's layer."""
    return "cache_params" if "cache_params" in signature(kind.forward).parameters else "past_key_values"


def can_host_tree(config) -> str | None:
    """Why a model of this configuration cannot verify a tree (a chain where it `takes_chains`); None if it can."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = config.get_text_config()
    kinds = layer_kinds(config)
    others = kinds - {FULL, SLIDING, *RECURRENT, "moe", "mlp"}
    # GPT-NeoX has this setting too, and ignores it.
    encoder = getattr(config, "is_decoder", None) is False and not config.model_type.startswith("gpt_neox")
    alibi = getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt")
    checks = (
        (getattr(config, "is_encoder_decoder", False), "it is an encoder-decoder"),
        (config.model_type == "llama4_text", "it attends in chunks of positions and scales queries by position"),
        (others, f"some of its layers are {', '.join(sorted(others))}, which are not supported"),
        (alibi, "its positions are an ALiBi bias, which follows slots instead of depth"),
        (config.model_type == "doge", "its attention has its own mask for each head"),
        (getattr(config, "cross_attention_layers", None), "some of its layers attend to images"),
        (encoder, "it is configured as an encoder, which sees later tokens (is_decoder=False)"),
    )
    if reason := next((reason for applies, reason in checks if applies), None):
        return reason
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        return f"transformers has no causal language model of type {config.model_type}"
    # Hybrids lack the flag, but call it; layers with a state alone have no attention to call.
    hybrid = takes_chains(config) and ("ALL_ATTENTION_FUNCTIONS" in getsource(getmodule(model_class))
                                       or not kinds & {FULL, SLIDING, *COMBINED})
    if hybrid or getattr(model_class, "_supports_attention_backend", False):
        return None
    return f"{model_class.__name__} does not call attention through transformers' AttentionInterface"


def takes_chains(config) -> bool:
    """Whether a model of this configuration has layers with a state, so that it takes chains alone."""
    return bool(layer_kinds(config) & RECURRENT)


def layer_kinds(config) -> set[str]:
    """The kinds of a model's layers, by their names in configurations."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return set(getattr(config, "layer_types", None) or [SLIDING if window else FULL])


_LOCKS = WeakKeyDictionary()  # for each model the lock that a thread holds inside the context


@contextmanager
def using_attention(model, name: str) -> Iterator[None]:
    """The model has this `attn_implementation` inside the context; one thread at a time."""
    register()
    with _LOCKS.setdefault(model, RLock()):
        before = model.config._attn_implementation
        model.set_attn_implementation(name)
        try:
            yield
        finally:
            model.set_attn_implementation(before)


def check_attention(model) -> None:
    """ValueError where a model's attention is not "tree": any other would read the nodes of a tree as a text."""
    if (current := getattr(model.config, "_attn_implementation", TREE)) != TREE:
        raise ValueError(f"{type(model).__name__} has attention {current!r}, which cannot verify a tree; pass it "
                         "through lib.attention.registration.hosting_trees")


def hosting_trees(model):
    """Sets a model's attention to "tree" and returns the model. ValueError where that cannot verify a tree."""
    if reason := can_host_tree(model.config):
        raise ValueError(f"{type(model).__name__} cannot verify a tree: {reason}")
    register()
    model.set_attn_implementation(TREE)
    return model
