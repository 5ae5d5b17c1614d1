"""Other projects' GPU kernels that can serve a tree, timed where they are installed: FlashInfer's and xformers'.

Both want a token's heads side by side: a decoder of theirs keeps its cache so, and that is not timed. What it must make
for each tree, masks and plans, is, as it is of ours. Results are compared with ours first: libraries change.
"""

import importlib.util
from dataclasses import replace
from typing import Callable

import torch
from torch import Tensor

from lib.attention.operator import tree_attention
from lib.studies.attention.problem import Problem

WORKSPACE = 2**27  # bytes, what FlashInfer advises for its split over keys
APART = 1e-2  # of our norm, at most: numbers of 16 bits, and another order of sums
FEW_TOKENS = 16  # of the prefix at which that is asked: in a long one a mistaken mask weighs little
DTYPES = (torch.float16, torch.bfloat16)
Call = Callable[[], Tensor]


def flashinfer(problem: Problem) -> Call:
    """FlashInfer's ragged prefill, with a mask over prefix and tree, a bit a pair (Ye et al. 2025, 3.2)."""
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
    """The library's call, once its result behind the prefix's last tokens is ours. RuntimeError where it is not."""

    def prepared(problem: Problem) -> Call:
        few = min(problem.prefix, FEW_TOKENS)
        key, value = (x[:, :, problem.prefix - few :] for x in (problem.key, problem.value))
        ours = tree_attention(problem.query, key, value, problem.tree_mask, few).float()
        apart = (prepare(replace(problem, key=key, value=value, prefix=few))().float() - ours).norm() / ours.norm()
        if not apart <= APART:
            raise RuntimeError(f"its result lies {apart:.1e} of our norm from ours")
        return prepare(problem)

    return prepared


LIBRARIES: dict[str, Callable[[Problem], Call]] = {"flashinfer": checked(flashinfer), "xformers": checked(xformers)}


def installed() -> list[str]:
    """The libraries that this machine has."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name)]


def refusal(name: str, problem: Problem) -> str | None:
    """Why a library cannot serve a problem on this machine; None if it can."""
    if name not in installed():
        return f"{name} is not installed"
    if not problem.query.is_cuda:
        return f"it is for CUDA, the tensors are on {problem.query.device.type}"
    if problem.query.dtype not in DTYPES:
        return f"it knows float16 and bfloat16, not {str(problem.query.dtype).removeprefix('torch.')}"
    if name == "xformers" and not problem.prefix:
        return "it wants a prefix"
    return None


def _by_token(x: Tensor) -> Tensor:
    """[B, H, S, d] -> [B, S, H, d], a copy."""
    return x.transpose(1, 2).contiguous()
