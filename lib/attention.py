"""Tree attention: every node of a draft tree attends to the whole prefix and to its own ancestors, in one call.

`tree_attention` is the operator, with a plain float64 reference as its oracle. `register` teaches it to transformers under
the name "tree"; `tree_forward` is the one place that knows how a registered model is called.

The signature knows no mask over the prefix: what comes before the tree is seen by all of it, so the mask covers the
tree's own keys alone. Logarithms are natural; log-sum-exp values are float32 (float64 for float64 inputs).
"""

from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

TREE = "tree"  # the name under which transformers finds us: attn_implementation="tree"


@dataclass(frozen=True)
class Choice:
    """The backend that `auto` takes, and the reason in words."""

    backend: str
    reason: str


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree_mask: Tensor,
    prefix_length: int | Tensor,
    *,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of mq tree nodes over a prefix and over mk tree keys that lie right behind it.

    query [B, Hq, mq, d]; key [B, Hkv, S, d]; value [B, Hkv, S, dv]; Hq a multiple of Hkv (grouped queries).
    tree_mask bool [mq, mk] or [B, mq, mk]: which tree keys a node sees. prefix_length: int, or int[B] (a tensor on the
    CPU spares a synchronisation). Row b sees keys 0 .. prefix[b] - 1, and those of prefix[b] .. prefix[b] + mk - 1 that its
    mask allows; S may be longer, and what lies beyond is never read into the result, whatever it holds.
    Returns [B, Hq, mq, dv] in the query's dtype, and with `return_lse` the log of the softmax's denominator [B, Hq, mq].
    """
    prefix = prefix_list(prefix_length, query.shape[0])
    _check(query, key, value, tree_mask, prefix)
    if backend == "auto":
        backend = choose_backend(query, key, tree_mask).backend
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(['auto', *BACKENDS])}")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = BACKENDS[backend](query, key, value, tree_mask, prefix, scale, return_lse)
    return (output, lse) if return_lse else output


def choose_backend(query: Tensor, key: Tensor, tree_mask: Tensor) -> Choice:
    """What `backend="auto"` stands for, given these inputs, and why."""
    rows = query.shape[1] // key.shape[1] * query.shape[2]
    return Choice("folded", f"one fused call over {rows} folded query rows reads each key and value once")


# ---------------------------------------------------------------------------------------------------------- backends
# A backend maps (query, key, value, tree_mask, prefix: list of B ints, scale, return_lse) to (output, lse or None). Rows whose prefixes differ
# are taken one at a time: each then reads its own keys only, and garbage behind a short row cannot leak in, NaN included.


def reference(query, key, value, tree_mask, prefix, scale, return_lse=True):
    """The definition, in float64: softmax(q k^T scale + mask) v with an explicit mask, row by row."""
    group, mk = query.shape[1] // key.shape[1], tree_mask.shape[-1]
    tree_mask = tree_mask.expand(len(prefix), -1, -1)
    outputs, lses = [], []
    for row, length in enumerate(prefix):
        k = key[row, :, : length + mk].double().repeat_interleave(group, 0)  # [Hq, prefix + mk, d]
        v = value[row, :, : length + mk].double().repeat_interleave(group, 0)
        scores = query[row].double() @ k.mT * scale  # [Hq, mq, prefix + mk]
        scores[..., length:].masked_fill_(~tree_mask[row], float("-inf"))
        lse = scores.logsumexp(-1)
        outputs.append((scores - lse[..., None]).exp() @ v)
        lses.append(lse)
    return torch.stack(outputs).to(query.dtype), torch.stack(lses).to(_lse_dtype(query))


def folded(query, key, value, tree_mask, prefix, scale, return_lse=True):
    """One fused attention call, the G heads that share a key folded into the query's rows: row i is node i % mq."""
    if len(set(prefix)) > 1:
        return _row_by_row(folded, query, key, value, tree_mask, prefix, scale, return_lse)
    group, mk, end = query.shape[1] // key.shape[1], tree_mask.shape[-1], prefix[0] + tree_mask.shape[-1]
    bias = query.new_zeros(*tree_mask.shape[:-1], end)
    bias[..., end - mk :].masked_fill_(~tree_mask, float("-inf"))
    bias = bias.view(-1, 1, *bias.shape[-2:]).repeat(1, 1, group, 1)  # [B or 1, 1, G * mq, end], head-major
    rows, keys, values = _fold(query, group), key[:, :, :end], value[:, :, :end]
    if not return_lse:
        return _unfold(F.scaled_dot_product_attention(rows, keys, values, attn_mask=bias, scale=scale), group), None
    output, lse = _attend(rows, keys, values, bias, scale)
    return _unfold(output, group), lse.reshape(query.shape[:-1])


def split(query, key, value, tree_mask, prefix, scale, return_lse=True):
    """Prefix without a mask, tree with one, merged by their log-sum-exps: for kernels that take no mask."""
    if len(set(prefix)) > 1:
        return _row_by_row(split, query, key, value, tree_mask, prefix, scale, return_lse)
    group, length, mk = query.shape[1] // key.shape[1], prefix[0], tree_mask.shape[-1]
    rows = _fold(query, group)
    hidden = ~tree_mask.reshape(-1, 1, *tree_mask.shape[-2:]).repeat(1, 1, group, 1)
    bias = query.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    tree_keys = slice(length, length + mk)
    output, lse = _softmax_attention(rows, key[:, :, tree_keys], value[:, :, tree_keys], bias, scale)
    if length:
        before = _attend(rows, key[:, :, :length], value[:, :, :length], None, scale)
        output, lse = merge(*before, output, lse)
    return _unfold(output.to(query.dtype), group), lse.reshape(query.shape[:-1])


BACKENDS: dict[str, Callable] = {"reference": reference, "folded": folded, "split": split}


def merge(output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from the attention over each.

    outputs [..., m, d], lse [..., m]; an empty set has lse -inf. In float32 at least, whatever the outputs' dtype:
    o = (e^la oa + e^lb ob) / (e^la + e^lb). Two empty sets give zeros and -inf, not NaN.
    """
    top = torch.maximum(lse_a, lse_b).clamp_min(torch.finfo(lse_a.dtype).min)
    weight_a, weight_b = (lse_a - top).exp()[..., None], (lse_b - top).exp()[..., None]
    total = weight_a + weight_b
    parts = [weight * output.to(total.dtype).masked_fill(weight == 0, 0) for weight, output in
             ((weight_a, output_a), (weight_b, output_b))]
    smallest = torch.finfo(total.dtype).tiny
    return (parts[0] + parts[1]) / total.clamp_min(smallest), torch.logaddexp(lse_a, lse_b)


# ------------------------------------------------------------------------------------------------------------ pieces


def prefix_list(prefix_length: int | Tensor, batch: int) -> list[int]:
    """Prefix lengths as B Python integers."""
    if isinstance(prefix_length, int):
        return [prefix_length] * batch
    lengths = torch.as_tensor(prefix_length).reshape(-1).tolist()
    if len(lengths) == 1:
        return lengths * batch
    if len(lengths) != batch:
        raise ValueError(f"prefix_length has {len(lengths)} entries, the query {batch} rows; give one int, or one a row")
    return lengths


def _check(query: Tensor, key: Tensor, value: Tensor, tree_mask: Tensor, prefix: list[int]) -> None:
    """Refuse inputs that cannot mean a tree, with the shapes that say so."""
    (batch, heads, mq, _), (kv_batch, kv_heads, stored, _) = query.shape, key.shape
    if kv_batch != batch or key.shape[:3] != value.shape[:3] or key.shape[3] != query.shape[3]:
        raise ValueError(f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)} do not fit; "
                         "they are [B, Hq, mq, d], [B, Hkv, S, d], [B, Hkv, S, dv]")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads over {kv_heads} key heads: the first must be a multiple of the second")
    if tree_mask.dtype != torch.bool:
        raise ValueError(f"tree_mask is {tree_mask.dtype}; give torch.bool, True where a node sees a key")
    if tree_mask.dim() not in (2, 3) or tree_mask.shape[-2] != mq or tree_mask.shape[:-2] not in ((), (1,), (batch,)):
        raise ValueError(f"tree_mask is {tuple(tree_mask.shape)}; {batch} rows of {mq} queries take [{mq}, mk] or [{batch}, {mq}, mk]")
    if min(prefix) < 0 or max(prefix) + tree_mask.shape[-1] > stored:
        raise ValueError(f"prefix lengths {min(prefix)} to {max(prefix)} and {tree_mask.shape[-1]} tree keys need "
                         f"{max(prefix) + tree_mask.shape[-1]} stored keys and no negative length; there are {stored}")
    if min(prefix) == 0 and not tree_mask.any(-1).all():
        raise ValueError("a node of tree_mask sees nothing and there is no prefix; every node sees at least itself")


def _fold(query: Tensor, group: int) -> Tensor:
    """[B, Hkv * G, m, d] -> [B, Hkv, G * m, d], head-major."""
    batch, heads, nodes, dim = query.shape
    return query.reshape(batch, heads // group, group * nodes, dim)


def _unfold(output: Tensor, group: int) -> Tensor:
    batch, kv_heads, rows, dim = output.shape
    return output.reshape(batch, kv_heads * group, rows // group, dim)


def _lse_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _attend(query, key, value, bias, scale):
    """Fused attention with its log-sum-exp; `bias` None or additive [B or 1, 1, rows, keys]."""
    if query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias, scale=scale)
    if bias is None and query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        output, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
        return output, lse
    return _softmax_attention(query, key, value, bias, scale)


def _softmax_attention(query, key, value, bias, scale):
    """Unfused attention with its log-sum-exp, in float32 at least."""
    wide = _lse_dtype(query)
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if bias is not None:
        scores += bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(torch.finfo(wide).min)[..., None]).exp()  # a row that sees nothing stays zero
    return weights @ value.to(wide), lse


def _row_by_row(backend, query, key, value, tree_mask, prefix, scale, return_lse):
    tree_mask = tree_mask.expand(len(prefix), -1, -1)
    rows = [backend(query[b : b + 1], key[b : b + 1], value[b : b + 1], tree_mask[b], [length], scale, return_lse)
            for b, length in enumerate(prefix)]
    return torch.cat([output for output, _ in rows]), torch.cat([lse for _, lse in rows]) if return_lse else None


# ------------------------------------------------------------------------------------------------------- transformers


def register() -> None:
    """Teach transformers the name "tree", for attention and for masks (without the second, padding is lost in silence)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(TREE, attention_forward)
    AttentionMaskInterface.register(TREE, sdpa_mask)


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, *, tree_mask=None,
                      prefix_length=None, tree_backend="auto", **kwargs):
    """What a model's attention layer calls: a tree where `tree_mask` is given, else just what "sdpa" does.

    `prefix_length` without `tree_mask` means a chain behind that prefix; with prefix 0, an ordinary causal prefill, in
    which right padding needs no mask since no real token looks at it. Returns ([B, mq, Hq, d], None) as transformers asks.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    nodes = query.shape[2]
    if tree_mask is None and prefix_length is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    unsupported = [name for name in ("softcap", "position_bias", "s_aux", "sliding_window") if kwargs.get(name) is not None]
    if unsupported:
        raise ValueError(f"{type(module).__name__} passes {', '.join(unsupported)}, which tree attention does not know; "
                         "ask can_host_tree(model.config) first")
    prefix = prefix_list(0 if prefix_length is None else prefix_length, query.shape[0])
    if tree_mask is None and not any(prefix):
        return sdpa_attention_forward(module, query, key[:, :, :nodes], value[:, :, :nodes], None, 0.0, scaling, is_causal=True)
    if tree_mask is None:
        tree_mask = torch.ones(nodes, nodes, dtype=torch.bool, device=query.device).tril()
    output = tree_attention(query, key, value, tree_mask, torch.tensor(prefix), scale=scaling, backend=tree_backend)
    return output.transpose(1, 2).contiguous(), None


def tree_forward(model, tokens: Tensor, depth: Tensor, tree_mask: Tensor | None, cache, **kwargs):
    """One forward of a registered model over a block of tree nodes behind each row's committed tokens.

    tokens int64[B, m]; depth int64[m] or [B, m]; tree_mask bool[m, mk] or [B, m, mk] with mk = cache.pending + m, or None
    for a causal block; cache a TreeCache, fresh for a prefill. Position ids are prefix + depth. The empty four-dimensional
    attention mask tells transformers that there is nothing to build. Keywords go to the model, which returns its outputs.
    """
    lengths = cache.lengths if len(cache.lengths) else tokens.new_zeros(tokens.shape[0])
    return model(
        input_ids=tokens,
        position_ids=lengths[:, None].to(tokens.device) + depth,
        attention_mask=tokens.new_zeros(0, 1, 1, 1, dtype=torch.bool),
        past_key_values=cache,
        tree_mask=tree_mask,
        prefix_length=torch.tensor(cache.rows.as_list or [0]),
        use_cache=True,
        **kwargs,
    )


def can_host_tree(config) -> str | None:
    """Why a model of this configuration cannot verify a tree in one forward; None if it can."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    checks = [
        (getattr(config, "is_encoder_decoder", False), "it is an encoder-decoder"),
        (kinds != {"full_attention"}, f"its layers are {', '.join(sorted(kinds))}: only full attention sees a whole prefix"),
        (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True),
         f"its attention sees a sliding window of {getattr(config, 'sliding_window', None)} tokens"),
        (getattr(config, "attention_chunk_size", None), "its attention is chunked"),
        (getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"),
         "its positions are an ALiBi bias, which follows slots, not depth"),
        (getattr(config, "attn_logit_softcapping", None), "its attention soft-caps the logits"),
        (config.model_type == "gpt_oss", "its attention has sinks"),
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
