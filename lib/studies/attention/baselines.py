"""What tree attention replaces, each in its best form: sequential decoding, per-branch batching, the dense mask.

A baseline is prepared once and then called: `PREPARE[name](problem)` returns a function without arguments that computes
[B, Hq, m, d]. Preparation holds what a decoder would have at hand anyway (index lists, a cache with room behind the
prefix); whatever a decoder must do anew for each tree (copies of keys, masks) happens in the call and is timed.
"""

from types import SimpleNamespace
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.backends import BACKENDS, refusal
from lib.attention.operator import tree_attention
from lib.studies.attention import gpu_libraries
from lib.studies.attention.problem import AUTO, CHAIN, Problem


def in_backend(backend: str) -> Callable[[Problem], Callable[[], Tensor]]:
    """`tree_attention` itself as an alternative."""

    def prepare(problem: Problem) -> Callable[[], Tensor]:
        p = problem
        return lambda: tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix, backend=backend)

    return prepare


def compiled(problem: Problem) -> Callable[[], Tensor]:
    """`flex`, called once, since its compiling is no part of its time."""
    run = in_backend(COMPILED)(problem)
    run()
    return run


def as_chain(problem: Problem) -> Callable[[], Tensor]:
    """What the tree costs beyond a chain: `auto` on as many nodes under a causal mask. Its result is another one."""
    p, causal = problem, torch.ones_like(problem.tree_mask).tril()
    return lambda: tree_attention(p.query, p.key, p.value, causal, p.prefix)


def refused(name: str, problem: Problem) -> str | None:
    """Why an alternative cannot serve a problem on this machine; None if it can."""
    if name in gpu_libraries.LIBRARIES:
        return gpu_libraries.refusal(name, problem)
    return refusal(name, problem.query, problem.key, problem.value)


def sequential_nodes(problem: Problem) -> Callable[[], Tensor]:
    """Node after node, as plain decoding does: one query row a call, heads folded, its path behind the prefix."""
    ancestors = [row.nonzero().flatten() for row in problem.tree_mask]
    return _sequential(problem, ancestors, [1] * len(ancestors), fold=True)


def sequential_paths(problem: Problem, fold: bool = False) -> Callable[[], Tensor]:
    """One root-to-leaf path after another, causal, each computing only the nodes that no earlier path has done."""
    done, paths, fresh = set(), problem.paths, []
    for path in paths:
        fresh.append(len([node for node in path.tolist() if node not in done]))
        done.update(path.tolist())
    return _sequential(problem, paths, fresh, fold)


def _sequential(problem: Problem, paths: list[Tensor], fresh: list[int], fold: bool) -> Callable[[], Tensor]:
    """For each path: append its keys in place behind the prefix, attend with its last `fresh` nodes, causally."""
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


def branch_batch(problem: Problem) -> Callable[[], Tensor]:
    """Every path a row of its own, with its own copy of the prefix: one causal call, heads folded."""
    p, group = problem, problem.group
    nodes = torch.nn.utils.rnn.pad_sequence(p.paths, batch_first=True).to(p.query.device)  # [leaves, longest], padded
    leaves, longest = nodes.shape
    mask = _causal_tail(p, longest, longest, group)
    found = {node: (leaf, at) for leaf, path in enumerate(p.paths) for at, node in enumerate(path.tolist())}
    of_node = torch.tensor([found[node] for node in range(p.query.shape[2])], device=nodes.device)
    leaf_of, place_of = of_node.unbind(1)

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


def dense_mask(problem: Problem) -> Callable[[], Tensor]:
    """transformers' own "sdpa": a mask over prefix and tree, built for each tree, keys and values repeated per head."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    p, module = problem, SimpleNamespace(num_key_value_groups=problem.group, is_causal=True)

    def run() -> Tensor:
        batch, _, m, _ = p.query.shape
        mask = torch.ones(batch, 1, m, p.prefix + m, dtype=torch.bool, device=p.query.device)
        mask[..., p.prefix :] = p.tree_mask
        output, _ = sdpa_attention_forward(module, p.query, p.key, p.value, mask)
        return output.transpose(1, 2)

    return run


COMPILED = "flex"  # takes many seconds to compile, so that not every run wants it
KERNELS = "onepass", "triton"  # of the project's own forms, those made for trees alone
OURS = tuple(name for name in BACKENDS if name != "reference")
PREPARE: dict[str, Callable[[Problem], Callable[[], Tensor]]] = {
    **{name: in_backend(name) for name in (AUTO, *OURS)},
    COMPILED: compiled,
    "dense mask": dense_mask,
    "branch batch": branch_batch,
    "path by path": sequential_paths,
    "path by path, folded": lambda problem: sequential_paths(problem, fold=True),
    "node by node": sequential_nodes,
    **gpu_libraries.LIBRARIES,
    CHAIN: as_chain,
}
QUICK = tuple(name for name in PREPARE if name not in (COMPILED, CHAIN, *gpu_libraries.LIBRARIES))  # all processors'
SEQUENTIAL = ("path by path", "path by path, folded", "node by node")
