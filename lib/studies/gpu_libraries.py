"""Other projects' GPU kernels that can serve a tree, timed where they are installed: FlashInfer's and xformers'.

Both want a token's heads side by side. A decoder of theirs keeps its cache so, and plans once for all layers of a
forward, so neither is timed. Their results are compared with ours before the clock starts: libraries change.
"""

import importlib.util
from typing import Callable

import torch
from torch import Tensor

from lib.attention import tree_attention
from lib.studies.attention_problem import Problem

WORKSPACE = 2**27  # bytes, what FlashInfer advises for its split over keys
NEAR = 2e-2  # of our norm: numbers of 16 bits, and another order of sums
DTYPES = (torch.float16, torch.bfloat16)
Call = Callable[[], Tensor]


def flashinfer(problem: Problem) -> Call:
    """FlashInfer's ragged prefill, with a mask over prefix and tree, a bit a pair (Ye et al. 2025, 3.2)."""
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    p, (batch, heads, nodes, dim) = problem, problem.query.shape
    query, key, value = (_by_token(x).flatten(0, 1) for x in (p.query, p.key, p.value))
    visible = torch.ones(nodes, p.prefix + nodes, dtype=torch.bool, device=query.device)
    visible[:, p.prefix :] = p.tree_mask
    rows = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
    memory = torch.empty(WORKSPACE, dtype=torch.uint8, device=query.device)
    planned = BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD")
    planned.plan(
        *(rows * nodes, rows * (p.prefix + nodes), heads, p.key.shape[1], dim),
        custom_mask=visible.flatten().repeat(batch), q_data_type=query.dtype,
    )
    return lambda: planned.run(query, key, value).unflatten(0, (batch, nodes)).transpose(1, 2)


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
    own = torch.zeros(nodes, nodes, dtype=query.dtype, device=query.device).masked_fill_(~p.tree_mask, float("-inf"))
    lengths = dict(q_seqlen=[nodes] * batch, kv_padding=p.prefix, kv_seqlen=[p.prefix] * batch)
    before = BlockDiagonalPaddedKeysMask.from_seqlens(**lengths)
    return lambda: theirs(query, *tree, *context, own, before).flatten(2, 3).transpose(1, 2)


def checked(prepare: Callable[[Problem], Call]) -> Callable[[Problem], Call]:
    """The library's call once its result is ours. RuntimeError where it fails, or is not."""

    def prepared(problem: Problem) -> Call:
        p = problem
        ours = tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix).float()
        try:
            run = prepare(problem)
            apart = (run().float() - ours).norm() / ours.norm()
        except Exception as error:  # whatever a library chooses to raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        if not apart <= NEAR:
            raise RuntimeError(f"its result lies {apart:.1e} of our norm from ours")
        return run

    return prepared


PREPARE: dict[str, Callable[[Problem], Call]] = {"flashinfer": checked(flashinfer), "xformers": checked(xformers)}


def installed() -> list[str]:
    """The libraries that this machine has."""
    return [name for name in PREPARE if importlib.util.find_spec(name)]


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
