"""The alternatives of the attention study: the project's backends, and what tree attention replaces, each at its best.

An alternative is prepared once and then called: `PREPARE[name](problem)` returns a function without arguments that
computes [B, Hq, m, d]. Preparation makes what a decoder has at hand anyway (index lists, a cache with room after the
prefix); the timed call includes whatever a decoder must do for each tree (copies of keys, masks, plans).

FlashInfer and xformers are kernels of other projects for GPUs, timed where they are installed. Both want the heads of a
token side by side: their decoders keep such a cache, so that the rearrangement is not timed. Their results are compared
with ours before they are timed.
"""

import importlib.util
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.backends import BACKENDS
from lib.attention.backends import refusal as backend_refusal
from lib.attention.operator import tree_attention

AUTO = "auto"  # one of the project's own backends under another name
CHAIN = "as a chain"  # `auto` on a chain of as many nodes
NO_RIVALS = AUTO, CHAIN
COMPILED = "flex"  # takes many seconds to compile, so that not every run wants it
KERNELS = "onepass", "triton"  # of the project's own backends, those made for trees alone
OURS = tuple(name for name in BACKENDS if name != "reference")
SEQUENTIAL = ("path by path", "path by path, folded", "node by node")
WORKSPACE = 2**27  # bytes, as FlashInfer advises for its split over keys
APART = 1e-2  # most distance from our result, in its norm: numbers of 16 bits, and another order of sums
FEW_TOKENS = 16  # of the prefix in that comparison: in a long one a wrong mask changes little
LIBRARY_DTYPES = (torch.float16, torch.bfloat16)
Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Problem:
    """One call of tree attention: the same tree and prefix length in every row."""

    query: Tensor  # [B, Hq, m, d]
    key: Tensor  # [B, Hkv, prefix + m, d]
    value: Tensor  # [B, Hkv, prefix + m, d]
    tree_mask: Tensor  # bool [m, m], nodes in topological order
    prefix: int

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def scratch(self) -> tuple[Tensor, Tensor]:
        """A sequential decoder's cache: keys and values whose slots after the prefix are overwritten path by path."""
        return self.key.clone(), self.value.clone()

    @property
    def paths(self) -> list[Tensor]:
        """Node indices root .. leaf, one int64 tensor per leaf."""
        seen_by = self.tree_mask.sum(0)  # a leaf is seen by itself alone
        return [self.tree_mask[leaf].nonzero().flatten() for leaf in (seen_by == 1).nonzero().flatten()]


def in_backend(backend: str) -> Callable[[Problem], Call]:
    """`tree_attention` itself as an alternative."""

    def prepare(problem: Problem) -> Call:
        p = problem
        return lambda: tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix, backend=backend)

    return prepare


def compiled(problem: Problem) -> Call:
    """`flex`, called once, since its compilation is not part of its time."""
    run = in_backend(COMPILED)(problem)
    run()
    return run


def as_chain(problem: Problem) -> Call:
    """`auto` on as many nodes under a causal mask: the cost of a tree beyond a chain. Its result is another one."""
    p, causal = problem, torch.ones_like(problem.tree_mask).tril()
    return lambda: tree_attention(p.query, p.key, p.value, causal, p.prefix)


def sequential_nodes(problem: Problem) -> Call:
    """Node after node, as plain decoding does: one query row per call with folded heads, its path after the prefix."""
    ancestors = [row.nonzero().flatten() for row in problem.tree_mask]
    return _sequential(problem, ancestors, [1] * len(ancestors), fold=True)


def sequential_paths(problem: Problem, fold: bool = False) -> Call:
    """One root-to-leaf path after another, causal; each computes only the nodes that no earlier path has computed."""
    done, paths, fresh = set(), problem.paths, []
    for path in paths:
        fresh.append(len([node for node in path.tolist() if node not in done]))
        done.update(path.tolist())
    return _sequential(problem, paths, fresh, fold)


def _sequential(problem: Problem, paths: list[Tensor], fresh: list[int], fold: bool) -> Call:
    """For each path: append its keys in place after the prefix, then attend causally with its last `fresh` nodes."""
    p, group = problem, problem.group
    cache_key, cache_value = p.scratch
    masks = [_causal_tail(p, len(path), new, group if fold else 1) for path, new in zip(paths, fresh)]

    def run() -> Tensor:
        output = torch.empty_like(p.query)
        for path, new, mask in zip(paths, fresh, masks):
            end = p.prefix + len(path)
            cache_key[:, :, p.prefix : end] = p.key[:, :, p.prefix + path]
            cache_value[:, :, p.prefix : end] = p.value[:, :, p.prefix + path]
            keys, values, query = cache_key[:, :, :end], cache_value[:, :, :end], p.query[:, :, path[-new:]]
            rows = query.reshape(*keys.shape[:2], group * new, -1) if fold else query
            out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, enable_gqa=not fold and group > 1)
            output[:, :, path[-new:]] = out.reshape(query.shape)
        return output

    return run


def _causal_tail(problem: Problem, length: int, new: int, repeat: int) -> Tensor | None:
    """Additive mask [repeat * new, prefix + length] of a path's last `new` nodes; one node sees everything."""
    if new == 1:
        return None
    hidden = torch.ones(new, problem.prefix + length, dtype=torch.bool, device=problem.query.device)
    hidden = hidden.triu(problem.prefix + length - new + 1)
    return torch.zeros_like(hidden, dtype=problem.query.dtype).masked_fill_(hidden, float("-inf")).repeat(repeat, 1)


def branch_batch(problem: Problem) -> Call:
    """Each path is a row of its own, with its own copy of the prefix: one causal call with folded heads."""
    p, group = problem, problem.group
    nodes = torch.nn.utils.rnn.pad_sequence(p.paths, batch_first=True).to(p.query.device)  # [leaves, longest], padded
    leaves, longest = nodes.shape
    mask = _causal_tail(p, longest, longest, group)
    places = {node: (leaf, at) for leaf, path in enumerate(p.paths) for at, node in enumerate(path.tolist())}
    leaf_of, place_of = torch.tensor([places[node] for node in range(p.query.shape[2])], device=nodes.device).unbind(1)

    def copied(x: Tensor) -> Tensor:  # [B, H, S, d] -> [B * leaves, H, prefix + longest, d]
        batch, heads, _, dim = x.shape
        copy = x.new_empty(batch, leaves, heads, p.prefix + longest, dim)
        copy[..., : p.prefix, :] = x[:, None, :, : p.prefix]
        copy[..., p.prefix :, :] = x[:, :, p.prefix + nodes].transpose(1, 2)
        return copy.flatten(0, 1)

    def run() -> Tensor:
        query = p.query[:, :, nodes].transpose(1, 2).flatten(0, 1)  # [B * leaves, Hq, longest, d]
        rows = query.reshape(query.shape[0], p.key.shape[1], group * longest, -1)
        out = F.scaled_dot_product_attention(rows, copied(p.key), copied(p.value), attn_mask=mask)
        out = out.reshape(p.query.shape[0], leaves, p.query.shape[1], longest, -1)
        return out[:, leaf_of, :, place_of].permute(1, 2, 0, 3)  # the index pair comes first: [m, B, Hq, d]

    return run


def dense_mask(problem: Problem) -> Call:
    """transformers' "sdpa": a mask over prefix and tree for each tree; keys and values repeated per query head."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    p, module = problem, SimpleNamespace(num_key_value_groups=problem.group, is_causal=True)

    def run() -> Tensor:
        batch, _, m, _ = p.query.shape
        mask = torch.ones(batch, 1, m, p.prefix + m, dtype=torch.bool, device=p.query.device)
        mask[..., p.prefix :] = p.tree_mask
        output, _ = sdpa_attention_forward(module, p.query, p.key, p.value, mask)
        return output.transpose(1, 2)

    return run


def flashinfer(problem: Problem) -> Call:
    """FlashInfer's ragged prefill, with a mask over prefix and tree of one bit per pair (Ye et al. 2025, 3.2)."""
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    p, (batch, heads, nodes, dim) = problem, problem.query.shape
    query, key, value = (_by_token(x).flatten(0, 1) for x in (p.query, p.key, p.value))
    rows = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
    sizes = rows * nodes, rows * (p.prefix + nodes), heads, p.key.shape[1], dim
    memory = torch.empty(WORKSPACE, dtype=torch.uint8, device=query.device)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD")

    def run() -> Tensor:
        visible = torch.ones(nodes, p.prefix + nodes, dtype=torch.bool, device=query.device)
        visible[:, p.prefix :] = p.tree_mask
        wrapper.plan(*sizes, custom_mask=visible.flatten().repeat(batch), q_data_type=query.dtype)
        return wrapper.run(query, key, value).unflatten(0, (batch, nodes)).transpose(1, 2)

    return run


def xformers(problem: Problem) -> Call:
    """xformers' tree attention: prefix and tree apart, the tree's mask additive, merged by their log-sum-exps."""
    from xformers.ops.fmha.attn_bias import BlockDiagonalPaddedKeysMask
    from xformers.ops.tree_attention import tree_attention as theirs

    p, batch, nodes = problem, *problem.query.shape[::2]
    query = _by_token(p.query).unflatten(2, (-1, p.group))  # [B, m, Hkv, G, d]

    def shared(x: Tensor) -> Tensor:  # [B, Hkv, S, d] -> [B, S, Hkv, G, d], repeated by strides alone
        return _by_token(x).unsqueeze(3).expand(-1, -1, -1, p.group, -1)

    context = [shared(x[:, :, : p.prefix]) for x in (p.key, p.value)]
    tree = [shared(x[:, :, p.prefix :]) for x in (p.key, p.value)]
    lengths = dict(q_seqlen=[nodes] * batch, kv_padding=p.prefix, kv_seqlen=[p.prefix] * batch)

    def run() -> Tensor:
        own = query.new_zeros(nodes, nodes).masked_fill_(~p.tree_mask, float("-inf"))
        before = BlockDiagonalPaddedKeysMask.from_seqlens(**lengths)
        return theirs(query, *tree, *context, own, before).flatten(2, 3).transpose(1, 2)

    return run


def checked(prepare: Callable[[Problem], Call]) -> Callable[[Problem], Call]:
    """The library's call, once its result with a short prefix agrees with ours. RuntimeError where it does not."""

    def prepared(problem: Problem) -> Call:
        few = min(problem.prefix, FEW_TOKENS)
        key, value = (x[:, :, problem.prefix - few :] for x in (problem.key, problem.value))
        ours = tree_attention(problem.query, key, value, problem.tree_mask, few).float()
        apart = (prepare(replace(problem, key=key, value=value, prefix=few))().float() - ours).norm() / ours.norm()
        if not apart <= APART:
            raise RuntimeError(f"its result differs from ours by {apart:.1e} of our norm")
        return prepare(problem)

    return prepared


LIBRARIES: dict[str, Callable[[Problem], Call]] = {"flashinfer": checked(flashinfer), "xformers": checked(xformers)}
PREPARE: dict[str, Callable[[Problem], Call]] = {
    **{name: in_backend(name) for name in (AUTO, *OURS)},
    COMPILED: compiled,
    "dense mask": dense_mask,
    "branch batch": branch_batch,
    "path by path": sequential_paths,
    "path by path, folded": lambda problem: sequential_paths(problem, fold=True),
    "node by node": sequential_nodes,
    **LIBRARIES,
    CHAIN: as_chain,
}
COLD = (*OURS, "dense mask", *LIBRARIES)  # the alternatives that are also timed with flushed caches
FIRST = (AUTO, *KERNELS, *OURS)  # timed first where not all can be: kernels made for trees, then what they replace
QUICK = tuple(name for name in PREPARE if name not in (COMPILED, CHAIN, *LIBRARIES))  # those of every processor


def absent() -> set[str]:
    """The libraries that are not installed."""
    return {name for name in LIBRARIES if importlib.util.find_spec(name) is None}


def refused(name: str, problem: Problem) -> str | None:
    """Why an alternative cannot serve a problem on this machine; None if it can."""
    if name in LIBRARIES:
        return _library_refusal(name, problem)
    if name in OURS:
        return backend_refusal(name, problem.query, problem.key, problem.value)
    return None


def _library_refusal(name: str, problem: Problem) -> str | None:
    if name in absent():
        return f"{name} is not installed"
    if not problem.query.is_cuda:
        return f"it is for CUDA, the tensors are on {problem.query.device.type}"
    if problem.query.dtype not in LIBRARY_DTYPES:
        return f"it takes float16 and bfloat16, not {str(problem.query.dtype).removeprefix('torch.')}"
    if name == "xformers" and not problem.prefix:
        return "it needs a prefix"
    return None


def _by_token(x: Tensor) -> Tensor:
    """[B, H, S, d] -> [B, S, H, d], a copy."""
    return x.transpose(1, 2).contiguous()
