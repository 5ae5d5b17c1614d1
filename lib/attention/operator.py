"""Tree attention: every node of a draft tree attends to the whole prefix and to its own ancestors, in one call.

`tree_attention` is the operator; its backends, a plain float64 reference among them, are in `attention_backends`.
`register` teaches it to transformers under the name "tree"; `tree_forward` knows how a registered model is called.

The signature knows no mask over the prefix: what comes before the tree is seen by all of it, so the mask covers the
tree's own keys alone. Logarithms are natural; log-sum-exp values are float32 (float64 for float64 inputs).
"""

import numpy as np
import torch
from torch import Tensor

from lib.attention.backends import BACKENDS, onepass, refusal
from lib.attention.backends.folded import attend_slots
from lib.attention.backends.mask import SharedMask
from lib.attention.choice import Choice, ranked, situation
from lib.lab.forward_clock import forward

MOST_REMEMBERED = 4096
_REMEMBERED: dict[tuple, str] = {}  # kinds of calls -> the backend that `auto` takes
TREE = "tree"  # the name under which transformers finds us: attn_implementation="tree"


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree_mask: Tensor | np.ndarray | SharedMask,
    prefix_length: int | Tensor,
    *,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of mq tree nodes over a prefix and over mk tree keys that lie right behind it.

    query [B, Hq, mq, d]; key [B, Hkv, S, d]; value [B, Hkv, S, dv]; Hq a multiple of Hkv (grouped queries).
    tree_mask bool [mq, mk] or [B, mq, mk]: which tree keys a node sees; calls that share one (a model's layers) take a
    SharedMask of it, so that additive masks are made once. prefix_length: int, or int[B] (a tensor on the CPU spares a
    synchronisation). Row b sees keys 0 .. prefix[b] - 1, and of prefix[b] .. prefix[b] + mk - 1 those that its mask
    allows; S may be longer, and what lies beyond is never read into the result, whatever it holds.
    Returns [B, Hq, mq, dv] in the query's dtype; with `return_lse` also the log of the softmax's denominator,
    [B, Hq, mq]. ValueError where the shapes, the dtypes or the lengths cannot mean a tree.
    """
    prefix = prefix_list(prefix_length, query.shape[0])
    mask = tree_mask if isinstance(tree_mask, SharedMask) else SharedMask(_tensor(tree_mask))
    _check(query, key, value, mask.visible, prefix)
    if backend == "auto":
        backend = auto(query, key, value, max(prefix), return_lse)
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(['auto', *BACKENDS])}")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = BACKENDS[backend](query, key, value, mask, prefix, scale, return_lse)
    return (output, lse) if return_lse else output


def auto(query: Tensor, key: Tensor, value: Tensor, prefix: int, return_lse: bool = False) -> str:
    """The name that `choose_backend` chooses, remembered: a small call would notice the time that choosing takes."""
    shift = max(0, prefix.bit_length() - 3)  # prefixes of one eighth share an answer
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    sizes = query.shape, key.shape[1], value.shape[-1], shift, prefix >> shift
    call = query.dtype, query.device, sizes, learns, return_lse
    if call not in _REMEMBERED:
        if len(_REMEMBERED) >= MOST_REMEMBERED:
            _REMEMBERED.clear()
        _REMEMBERED[call] = choose_backend(query, key, value, prefix, return_lse).backend
    return _REMEMBERED[call]


def choose_backend(query: Tensor, key: Tensor, value: Tensor, prefix: int, return_lse: bool = False) -> Choice:
    """What `backend="auto"` stands for, given these inputs behind a prefix of that length, and why.

    The fastest that notebook 03 measured in the nearest cell on this kind of machine, and that can serve such inputs.
    Where a processor's own kernel cannot be had at all, the log says so once.
    """
    if query.device.type == "cpu" and query.dtype in onepass.ENTRIES and (reason := onepass.unavailable()):
        onepass.say_once(reason)
    passed_over = []
    for backend, reason in ranked(situation(query, key, prefix)):
        refused = refusal(backend, query, key, value, return_lse)
        if refused is None:
            return Choice(backend, "; ".join([f"{backend}: {reason}", *passed_over]))
        passed_over.append(f"not {backend}: {refused}")
    raise AssertionError("the default backend serves all inputs")


def _tensor(mask: Tensor | np.ndarray) -> Tensor:
    """A mask as a tensor; a tree's own is an array of NumPy that must not be written to, so that it is copied."""
    return torch.tensor(mask) if isinstance(mask, np.ndarray) else mask


def prefix_list(prefix_length: int | Tensor, batch: int) -> list[int]:
    """Prefix lengths as B Python integers."""
    if isinstance(prefix_length, int):
        return [prefix_length] * batch
    given = torch.as_tensor(prefix_length)
    if given.is_floating_point():
        raise ValueError(f"prefix_length is {prefix_length}; give an int, or integers, one a row")
    lengths = given.reshape(-1).tolist()
    if len(lengths) == 1:
        return lengths * batch
    if len(lengths) != batch:
        raise ValueError(
            f"prefix_length has {len(lengths)} entries, the query {batch} rows; give one int, or one a row"
        )
    return lengths


def _check(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor, prefix: list[int]) -> None:
    """Refuse inputs that cannot mean a tree, with the shapes that say so."""
    four = query.dim() == key.dim() == value.dim() == 4 and 0 not in (*query.shape, *key.shape, *value.shape)
    if not four or key.shape[:3] != value.shape[:3] or key.shape[::3] != query.shape[::3]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)} do not fit; "
            "they are [B, Hq, mq, d], [B, Hkv, S, d], [B, Hkv, S, dv], none of them empty"
        )
    if not query.device == key.device == value.device:
        raise ValueError(f"query is on {query.device}, key on {key.device}, value on {value.device}; give one device")
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise ValueError(
            f"query is {query.dtype}, key {key.dtype}, value {value.dtype}; give all three in one floating-point dtype"
        )
    (batch, heads, mq, _), (_, kv_heads, stored, _) = query.shape, key.shape
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads over {kv_heads} key heads: the first must be a multiple of the second")
    if tree_mask.dtype != torch.bool:
        raise ValueError(f"tree_mask is {tree_mask.dtype}; give torch.bool, True where a node sees a key")
    of_rows = tree_mask.shape[:-2] in ((), (1,), (batch,))
    if tree_mask.dim() not in (2, 3) or tree_mask.shape[-2] != mq or not tree_mask.shape[-1] or not of_rows:
        raise ValueError(
            f"tree_mask is {tuple(tree_mask.shape)}; {batch} rows of {mq} queries "
            f"take [{mq}, mk] or [{batch}, {mq}, mk], of at least one key"
        )
    needed = max(prefix) + tree_mask.shape[-1]
    if min(prefix) < 0 or needed > stored:
        raise ValueError(
            f"prefix lengths {min(prefix)} to {max(prefix)} and {tree_mask.shape[-1]} tree keys need {needed} stored "
            f"keys and no negative length; there are {stored}"
        )
    alone = [row for row, length in enumerate(prefix) if not length]
    if alone and not (tree_mask[alone] if tree_mask.dim() == 3 and len(tree_mask) > 1 else tree_mask).any(-1).all():
        raise ValueError("a node of tree_mask sees nothing and there is no prefix; every node sees at least itself")


# ------------------------------------------------------------------------------------------------------- transformers


def register() -> None:
    """Teach transformers the name "tree", for attention and for masks (else padding would be lost in silence)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(TREE, attention_forward)
    AttentionMaskInterface.register(TREE, sdpa_mask)


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    *,
    tree_mask=None,
    prefix_length=None,
    tree_backend="auto",
    slot_bias=None,
    **kwargs,
):
    """What a model's attention layer calls: a tree where `tree_mask` is given, else just what "sdpa" does.

    `tree_mask` without `prefix_length` means a tree behind all keys but its own; `prefix_length` without `tree_mask` a
    chain behind that prefix; with prefix 0, an ordinary causal prefill, in which right padding needs no mask since no
    real token looks at it. Returns ([B, mq, Hq, d], None), as transformers asks. A tree takes no padding mask: rows of
    different lengths are right-padded, with `prefix_length` one a row.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    nodes = query.shape[2]
    if slot_bias is not None:  # an additive mask over all slots, for folded queries, as `lib.models.compiled` makes it
        return attend_slots(query, key, value, slot_bias, scaling).transpose(1, 2).contiguous(), None
    if tree_mask is None and prefix_length is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    unknown = [name for name in ("softcap", "position_bias", "s_aux", "sliding_window") if kwargs.get(name) is not None]
    if unknown:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(unknown)}, which tree attention does not know; "
            "ask can_host_tree(model.config) first"
        )
    if prefix_length is None:  # a tree without one lies behind all that its cache holds
        prefix_length = 0 if tree_mask is None else key.shape[2] - _keys(tree_mask)
    prefix = prefix_list(prefix_length, query.shape[0])
    if tree_mask is None and not any(prefix):
        key, value = key[:, :, :nodes], value[:, :, :nodes]
        return sdpa_attention_forward(module, query, key, value, None, 0.0, scaling, is_causal=True)
    if tree_mask is None:
        tree_mask = torch.ones(nodes, nodes, dtype=torch.bool, device=query.device).tril()
    output = tree_attention(query, key, value, tree_mask, torch.tensor(prefix), scale=scaling, backend=tree_backend)
    return output.transpose(1, 2).contiguous(), None


def _keys(tree_mask: Tensor | SharedMask) -> int:
    return (tree_mask.visible if isinstance(tree_mask, SharedMask) else tree_mask).shape[-1]


def tree_forward(model, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, **kwargs):
    """One forward of a registered model over a block of tree nodes behind each row's committed tokens.

    tokens int64[B, m]; depth int64[m] or [B, m]; tree_mask bool[m, mk] or [B, m, mk] with mk = cache.pending + m, or
    None for a causal block, which sees all that is pending; cache a TreeCache, fresh for a prefill. Position ids are
    prefix + depth. The empty four-dimensional attention mask tells transformers that there is nothing to build; the
    layers share what they make of `tree_mask`, for the time of this forward. Further keywords, and the outputs, are
    the model's. A stand-in that has a `tree_block` of its own is asked for that.
    """
    if own := getattr(model, "tree_block", None):
        with forward():
            if (outputs := own(tokens, depth, tree_mask, cache, **kwargs)) is not None:
                return outputs
    lengths = cache.lengths if len(cache.lengths) else tokens.new_zeros(tokens.shape[0])
    if tree_mask is None and (cache.pending or any(cache.rows.as_list)):
        tree_mask = causal(tokens.shape[1], cache.pending, tokens.device)
    with forward():
        return model(
            input_ids=tokens,
            position_ids=lengths[:, None].to(tokens.device) + depth,
            attention_mask=tokens.new_zeros(0, 1, 1, 1, dtype=torch.bool),
            past_key_values=cache,
            tree_mask=None if tree_mask is None else SharedMask(tree_mask),
            prefix_length=torch.tensor(cache.rows.as_list or [0]),
            use_cache=True,
            **kwargs,
        )


def causal(nodes: int, pending: int, device=None) -> Tensor:
    """The mask bool[m, pending + m] of a chain of m = nodes tokens right behind so many pending ones."""
    return torch.ones(nodes, pending + nodes, dtype=torch.bool, device=device).tril(pending)


def can_host_tree(config) -> str | None:
    """Why a model of this configuration cannot verify a tree in one forward; None if it can."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    # GPT-NeoX has the setting too, and heeds it not.
    encoder = getattr(config, "is_decoder", None) is False and not config.model_type.startswith("gpt_neox")
    alibi = getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt")
    checks = [
        (getattr(config, "is_encoder_decoder", False), "it is an encoder-decoder"),
        (kinds != {"full_attention"}, f"its layers are {', '.join(sorted(kinds))}: only full ones see a whole prefix"),
        (window and getattr(config, "use_sliding_window", True), f"it sees a sliding window of {window} tokens"),
        (getattr(config, "attention_chunk_size", None), "its attention is chunked"),
        (alibi, "its positions are an ALiBi bias, which follows slots, not depth"),
        (getattr(config, "attn_logit_softcapping", None), "its attention soft-caps the logits"),
        (config.model_type == "gpt_oss", "its attention has sinks"),
        (config.model_type == "doge", "its attention has a mask of its own for each head"),
        (getattr(config, "cross_attention_layers", None), "some of its layers attend to images"),
        (encoder, "it is configured as an encoder, which sees what follows (is_decoder=False)"),
    ]
    for refused, reason in checks:
        if refused:
            return reason
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        return f"transformers knows no causal language model of type {config.model_type}"
    if not getattr(model_class, "_supports_attention_backend", False):
        return f"{model_class.__name__} does not call attention through transformers' AttentionInterface"
    return None
