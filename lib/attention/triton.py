"""A fused kernel for CUDA: folded query rows against a range of keys; the ranges are merged by their log-sum-exps.

The prefix is split over programs (Flash-Decoding), so that a single sequence fills a GPU. Only tiles that reach beyond
the prefix read the mask, one bit per pair. Importing this module needs Triton, which CUDA builds of torch include.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lib.attention.masks import SharedMask

MOST_SPLITS = 64
LEAST_KEYS = 256  # per program; fewer are not worth one
LOG2_E = 1.4426950408889634
STAGES = 2  # tiles of keys and values in shared memory: the next is read during the computation with one
# These change with every tree: specialising for 1 and multiples of 16 would cost seconds of compilation.
CHANGING = ("nodes", "tree_keys", "rows", "words_a_row", "words_a_mask")


@triton.jit
def _online_softmax(scores, v, top, norm, out):
    """Adds a tile of scores (base 2) and its values to the maxima, sums and outputs so far (FlashAttention-2)."""
    peak = tl.maximum(top, tl.max(scores, 1))
    shrink, weights = tl.exp2(top - peak), tl.exp2(scores - peak[:, None])
    out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
    return peak, norm * shrink + tl.sum(weights, 1), out


@triton.jit
def _capped(scores, softcap, CAPPED: tl.constexpr):
    """Scores (base 2) as softcap * tanh(scores / softcap), the cap in base 2; tanh x = 1 - 2 / (1 + e^2x)."""
    if CAPPED:
        scores = softcap * (1 - 2 / (1 + tl.exp(2 * scores / softcap)))
    return scores


@triton.jit
def _over_prefix(q, key, value, first, end, key_n, value_n, dim, value_dim, factor, softcap, top, norm, out,
                 KEYS: tl.constexpr, CAPPED: tl.constexpr):
    """Whole tiles of keys first .. end - 1, which all rows see."""
    d, e, n = tl.arange(0, q.shape[1]), tl.arange(0, out.shape[1]), tl.arange(0, KEYS)
    for start in range(first, end, KEYS):
        at_key = (start + n).to(tl.int64)
        k = tl.load(key + at_key[None, :] * key_n + d[:, None], mask=(d < dim)[:, None], other=0.0)
        v = tl.load(value + at_key[:, None] * value_n + e[None, :], mask=(e < value_dim)[None, :], other=0.0)
        scores = _capped(tl.dot(q, k, input_precision="ieee") * factor, softcap, CAPPED)
        top, norm, out = _online_softmax(scores, v, top, norm, out)
    return top, norm, out


@triton.jit
def _over_tree(q, key, value, words, inside, first, end, prefix, key_n, value_n, dim, value_dim, factor, softcap,
               top, norm, out, KEYS: tl.constexpr, CAPPED: tl.constexpr):
    """Tiles of keys first .. end - 1 that reach beyond the prefix; words: for each row, one bit per key of the tree."""
    d, e, n = tl.arange(0, q.shape[1]), tl.arange(0, out.shape[1]), tl.arange(0, KEYS)
    for start in range(first, end, KEYS):
        at_key = (start + n).to(tl.int64)
        exists, tree_key = at_key < end, at_key - prefix
        k = tl.load(key + at_key[None, :] * key_n + d[:, None], mask=(d < dim)[:, None] & exists[None, :], other=0.0)
        v = tl.load(value + at_key[:, None] * value_n + e[None, :], mask=(e < value_dim)[None, :] & exists[:, None],
                    other=0.0)
        in_tree = exists & (tree_key >= 0)
        word = tl.load(words[:, None] + (tree_key >> 5)[None, :], mask=inside[:, None] & in_tree[None, :], other=0)
        bit = (word >> (tree_key & 31)[None, :].to(tl.int32)) & 1  # tree_key % 32 could be negative
        visible = (at_key < tl.minimum(prefix, end))[None, :] | (bit == 1)
        scores = _capped(tl.dot(q, k, input_precision="ieee") * factor, softcap, CAPPED)
        scores = tl.where(visible, scores, float("-inf"))
        top, norm, out = _online_softmax(scores, v, top, norm, out)
    return top, norm, out


@triton.jit(do_not_specialize=CHANGING)
def _range_of_keys(query, key, value, words, prefixes, partial, partial_lse, kv_heads, nodes, tree_keys, rows, dim,
                   value_dim, words_a_row, words_a_mask, factor, softcap, query_b, query_h, query_n, key_b, key_h,
                   key_n, value_b, value_h, value_n, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
                   VALUE_DIM: tl.constexpr, GROUP: tl.constexpr, CAPPED: tl.constexpr):
    """Unmerged attention of ROWS folded rows over one range of keys: normalised output, log-sum-exp in base 2."""
    block, split, splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    batch, head = (block // kv_heads).to(tl.int64), (block % kv_heads).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside, node = row < rows, row % nodes
    d, e = tl.arange(0, DIM), tl.arange(0, VALUE_DIM)
    at = query + batch * query_b + (head * GROUP + row // nodes)[:, None] * query_h + node[:, None] * query_n
    q = tl.load(at + d[None, :], mask=inside[:, None] & (d < dim)[None, :], other=0.0)

    prefix = tl.load(prefixes + batch)
    total = prefix + tree_keys
    length = tl.cdiv(tl.cdiv(total, splits), KEYS) * KEYS
    first = split * length
    end = tl.minimum(first + length, total)
    masked = tl.maximum(first, tl.minimum(end, prefix) // KEYS * KEYS)  # first key of the first tile with a mask
    key += batch * key_b + head * key_h
    value += batch * value_b + head * value_h
    words += batch * words_a_mask + node * words_a_row

    top = tl.full([ROWS], -1e30, tl.float32)  # finite, so that differences are not NaN
    norm = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, VALUE_DIM], tl.float32)
    top, norm, out = _over_prefix(q, key, value, first, masked, key_n, value_n, dim, value_dim, factor, softcap, top,
                                  norm, out, KEYS, CAPPED)
    top, norm, out = _over_tree(q, key, value, words, inside, masked, end, prefix, key_n, value_n, dim, value_dim,
                                factor, softcap, top, norm, out, KEYS, CAPPED)

    at_part = (block * splits + split).to(tl.int64) * rows + row
    empty = norm == 0
    lse = tl.where(empty, float("-inf"), top + tl.log2(tl.where(empty, 1.0, norm)))
    out = out / tl.where(empty, 1.0, norm)[:, None]
    tl.store(partial_lse + at_part, lse, mask=inside)
    tl.store(partial + at_part[:, None] * value_dim + e[None, :], out, mask=inside[:, None] & (e < value_dim)[None, :])


@triton.jit(do_not_specialize=("rows", "splits"))
def _merge_ranges(partial, partial_lse, output, lse, rows, value_dim, splits, SPLITS: tl.constexpr,
                  VALUE_DIM: tl.constexpr):
    """One row: its ranges weighted by 2^lse; the log-sum-exp in natural logarithms."""
    at = tl.program_id(0).to(tl.int64)
    block, row = at // rows, at % rows
    s, e = tl.arange(0, SPLITS), tl.arange(0, VALUE_DIM)
    at_part = (block * splits + s) * rows + row
    parts = tl.load(partial_lse + at_part, mask=s < splits, other=float("-inf"))
    top = tl.maximum(tl.max(parts, 0), -1e30)
    weights = tl.exp2(parts - top)
    norm = tl.sum(weights, 0)
    inside = (s < splits)[:, None] & (e < value_dim)[None, :]
    outs = tl.load(partial + at_part[:, None] * value_dim + e[None, :], mask=inside, other=0.0)
    whole = tl.sum(outs * weights[:, None], 0) / tl.where(norm == 0, 1.0, norm)
    tl.store(output + at * value_dim + e, whole.to(output.dtype.element_ty), mask=e < value_dim)
    natural = (top + tl.log2(tl.where(norm == 0, 1.0, norm))) * 0.6931471805599453
    tl.store(lse + at, tl.where(norm == 0, float("-inf"), natural))


def fused(query: Tensor, key: Tensor, value: Tensor, mask: SharedMask, prefix: list[int], scale: float,
          softcap: float | None = None, *, splits: int = 0) -> tuple[Tensor, Tensor]:
    """Attention of query [B, Hq, m, d] over key, value [B, Hkv, S, d or dv]: output [B, Hq, m, dv], lse [B, Hq, m].

    Layers that share the mask make its bits and the lengths once; only the first layer waits for them. splits: ranges
    of keys; by default as many as fill the GPU.
    """
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    (batch, heads, nodes, dim), kv_heads, value_dim = query.shape, key.shape[1], value.shape[3]
    rows, blocks, tree_keys = heads // kv_heads * nodes, batch * kv_heads, mask.visible.shape[-1]
    lengths, words = mask.lengths(prefix, query.device), mask.words(query.device)
    tile, keys, warps = tiles(rows, max(dim, value_dim), query.itemsize)
    splits = splits or splits_for(blocks * triton.cdiv(rows, tile), _slots(query, tile), max(prefix) + tree_keys)
    partial = query.new_empty(blocks, splits, rows, value_dim, dtype=torch.float32)
    partial_lse = query.new_empty(blocks, splits, rows, dtype=torch.float32)
    output, lse = query.new_empty(batch, heads, nodes, value_dim), query.new_empty(query.shape[:3], dtype=torch.float32)
    mask_stride = words.stride(0) if words.dim() == 3 and len(words) > 1 else 0
    wide_dim, wide_value = (max(16, triton.next_power_of_2(numbers)) for numbers in (dim, value_dim))
    with torch.cuda.device_of(query):  # Triton launches on the current device, which need not be theirs
        _range_of_keys[blocks, triton.cdiv(rows, tile), splits](
            query, key, value, words, lengths, partial, partial_lse,
            kv_heads, nodes, tree_keys, rows, dim, value_dim, words.stride(-2), mask_stride,
            scale * LOG2_E, (softcap or 0.0) * LOG2_E,
            *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
            ROWS=tile, KEYS=keys, DIM=wide_dim, VALUE_DIM=wide_value, GROUP=heads // kv_heads,
            CAPPED=softcap is not None,
            num_warps=warps, num_stages=STAGES,
        )
        _merge_ranges[(blocks * rows,)](partial, partial_lse, output, lse, rows, value_dim, splits,
                                        SPLITS=triton.next_power_of_2(splits), VALUE_DIM=wide_value, num_warps=1)
    return output, lse


def _slots(query: Tensor, tile: int) -> int:
    """Programs of `tile` rows that the GPU runs at once."""
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 1
    return processors * (2 if tile <= 64 else 1)


def splits_for(programs: int, slots: int, keys: int) -> int:
    """The number of ranges of keys, for `programs` unsplit programs on a GPU that runs `slots` at once.

    The smallest number whose share of busy slots is at least 0.9 of the best number's: the last wave of programs is
    seldom full, and each range costs a merge (FlashAttention's heuristic for Flash-Decoding).
    """
    most = max(1, min(MOST_SPLITS, keys // LEAST_KEYS))
    busy = [programs * splits / slots / math.ceil(programs * splits / slots) for splits in range(1, most + 1)]
    return next(splits for splits, share in enumerate(busy, 1) if share >= 0.9 * max(busy))


def tiles(rows: int, dim: int, width: int) -> tuple[int, int, int]:
    """Rows, keys and warps of a program, for `rows` folded rows and heads of `dim` numbers of `width` bytes.

    Compiled for an H200, these programs need no memory beyond registers; all but those of 128 rows fit twice on a
    multiprocessor, where one computes while the other waits for memory.
    """
    wide = dim > 128
    if width == 4:  # exact products run without matrix units and need many registers
        return 16, 16 if wide else 64, 4
    tile = min(64 if wide else 128, max(16, triton.next_power_of_2(rows)))
    return tile, 32 if wide else 64, 4 if tile <= 64 else 8
