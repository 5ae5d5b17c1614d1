"""The alternatives of the attention study: the project's backends, and what tree attention replaces, each at its best.

An alternative is prepared once and then called: `PREPARE[name](problem)` returns a function without arguments that
computes [B, Hq, m, d]. Preparation makes what a decoder has at hand anyway (index lists, a cache with room after the
prefix); the timed call includes whatever a decoder must do for each tree (copies of keys, masks, plans).
"""

from dataclasses import dataclass
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
COMPILED = "flex"  # takes many seconds to compile, so that not every run wants it
OURS = tuple(name for name in BACKENDS if name != "reference")
SEQUENTIAL = ("path by path", "node by node")
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


def sequential_nodes(problem: Problem) -> Call:
    """Node after node, as plain decoding does: one query row per call with folded heads, its path after the prefix."""
    ancestors = [row.nonzero().flatten() for row in problem.tree_mask]
    return _sequential(problem, ancestors, [1] * len(ancestors))


def sequential_paths(problem: Problem) -> Call:
    """One root-to-leaf path after another, causal, with folded heads; each computes only the nodes that no earlier path
    has computed.
    """
    done, paths, fresh = set(), problem.paths, []
    for path in paths:
        fresh.append(len([node for node in path.tolist() if node not in done]))
        done.update(path.tolist())
    return _sequential(problem, paths, fresh)


def _sequential(problem: Problem, paths: list[Tensor], fresh: list[int]) -> Call:
    """For each path: append its keys in place after the prefix, then attend causally with its last `fresh` nodes."""
    p, group = problem, problem.group
    cache_key, cache_value = p.scratch
    masks = [_causal_tail(p, len(path), new, group) for path, new in zip(paths, fresh)]

    def run() -> Tensor:
        output = torch.empty_like(p.query)
        for path, new, mask in zip(paths, fresh, masks):
            end = p.prefix + len(path)
            cache_key[:, :, p.prefix : end] = p.key[:, :, p.prefix + path]
            cache_value[:, :, p.prefix : end] = p.value[:, :, p.prefix + path]
            keys, values, query = cache_key[:, :, :end], cache_value[:, :, :end], p.query[:, :, path[-new:]]
            rows = query.reshape(*keys.shape[:2], group * new, -1)
            out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
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


PREPARE: dict[str, Callable[[Problem], Call]] = {
    **{name: in_backend(name) for name in (AUTO, *OURS)},
    COMPILED: compiled,
    "dense mask": dense_mask,
    "branch batch": branch_batch,
    "path by path": sequential_paths,
    "node by node": sequential_nodes,
}
COLD = (*OURS, "dense mask")  # the alternatives that are also timed with flushed caches
QUICK = tuple(name for name in PREPARE if name != COMPILED)  # those of every run


def copies(name: str, problem: Problem) -> int:
    """How many copies of the keys and values an alternative makes."""
    copies = {"branch batch": len(problem.paths), "dense mask": problem.group, **dict.fromkeys(SEQUENTIAL, 1)}
    return copies.get(name, 0)


def refused(name: str, problem: Problem) -> str | None:
    """Why an alternative cannot serve a problem on this machine; None if it can."""
    return backend_refusal(name, problem.query, problem.key, problem.value) if name in OURS else None
