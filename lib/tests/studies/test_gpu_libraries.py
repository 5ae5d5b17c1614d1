"""FlashInfer and xformers as baselines, without either: stand-ins that do what their documentation says.

They say nothing about speed; they say that queries, keys, masks and lengths are handed over as documented.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from lib.attention import tree_attention
from lib.studies.attention import baselines
from lib.studies.attention.baselines import LIBRARIES, Problem, refused


class RaggedPrefill:
    """flashinfer.BatchPrefillWithRaggedKVCacheWrapper: rows of all requests one behind the other, [tokens, heads, d];
    a flat mask of truth values, each request's queries by keys; group g of query heads belongs to key head g.
    """

    def __init__(self, workspace, layout):
        assert workspace.dtype == torch.uint8 and layout == "NHD"

    def plan(self, qo_indptr, kv_indptr, qo_heads, kv_heads, dim, *, custom_mask, q_data_type):
        assert qo_indptr.dtype == kv_indptr.dtype == torch.int32 and custom_mask.dtype == torch.bool
        self.ends, self.heads, self.mask = (qo_indptr.tolist(), kv_indptr.tolist()), (qo_heads, kv_heads, dim), custom_mask
        self.dtype = q_data_type

    def run(self, query, key, value):
        heads, kv_heads, dim = self.heads
        assert query.shape[1:] == (heads, dim) and key.shape[1:] == value.shape[1:] == (kv_heads, dim)
        assert query.dtype == self.dtype and query.is_contiguous() and key.is_contiguous()
        output, used = torch.empty_like(query), 0
        spans = zip(*(zip(ends, ends[1:]) for ends in self.ends))
        for (q0, q1), (k0, k1) in spans:
            seen = self.mask[used : (used := used + (q1 - q0) * (k1 - k0))].view(q1 - q0, k1 - k0)
            for head in range(heads):
                group = head // (heads // kv_heads)
                scores = query[q0:q1, head].double() @ key[k0:k1, group].double().T * dim**-0.5
                weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
                output[q0:q1, head] = (weights @ value[k0:k1, group].double()).to(query.dtype)
        assert used == len(self.mask)
        return output


class PaddedKeys:
    """xformers' BlockDiagonalPaddedKeysMask: so many queries of each row, and its first keys of a padded block."""

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_padding, kv_seqlen):
        mask = cls()
        mask.queries, mask.padding, mask.keys = q_seqlen, kv_padding, kv_seqlen
        return mask


def theirs(q, spec_k, spec_v, cache_k, cache_v, spec_attn_bias, prefix_attn_bias):
    """xformers.ops.tree_attention.tree_attention: all [B, tokens, G, H, d]; the bias [tree, tree] is added."""
    (batch, nodes, *_, dim), padding = q.shape, cache_k.shape[1]
    assert prefix_attn_bias.queries == [nodes] * batch and prefix_attn_bias.padding == padding
    cache_k.view(1, batch * padding, *cache_k.shape[2:])  # as its first step does
    output = torch.empty_like(q)
    for row, length in enumerate(prefix_attn_bias.keys):
        keys, values = (torch.cat([c[row, :length], s[row]]).double()
                        for c, s in ((cache_k, spec_k), (cache_v, spec_v)))
        scores = torch.einsum("mghd,nghd->ghmn", q[row].double(), keys) * dim**-0.5
        scores[..., length:] += spec_attn_bias
        output[row] = torch.einsum("ghmn,nghd->mghd", scores.softmax(-1), values).to(q.dtype)
    return output


@pytest.fixture
def libraries(monkeypatch):
    bias, tree = SimpleNamespace(BlockDiagonalPaddedKeysMask=PaddedKeys), SimpleNamespace(tree_attention=theirs)
    stand_ins = {"flashinfer": SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=RaggedPrefill),
                 "xformers": ModuleType("xformers"), "xformers.ops": ModuleType("xformers.ops"),
                 "xformers.ops.fmha": ModuleType("xformers.ops.fmha"),
                 "xformers.ops.fmha.attn_bias": bias, "xformers.ops.tree_attention": tree}
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    return tree


def problem(dtype=torch.float32, prefix=9):
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()
    query, key, value = (torch.randn(2, heads, tokens, 16, generator=generator).to(dtype)
                         for heads, tokens in ((6, 4), (2, prefix + 4), (2, prefix + 4)))
    return Problem(query, key, value, mask, prefix)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_given_what_its_documentation_asks_for(libraries, name):
    p = problem()
    truth = tree_attention(p.query, p.key, p.value, p.tree_mask, p.prefix, backend="reference")
    run = LIBRARIES[name](p)
    for _ in range(2):
        torch.testing.assert_close(run(), truth)


def test_a_library_that_fails_or_computes_something_else_is_not_timed(libraries):
    libraries.tree_attention = lambda q, *others: 1.1 * theirs(q, *others)
    with pytest.raises(RuntimeError, match="its result differs from ours by 1.0e-01 of our norm"):
        LIBRARIES["xformers"](problem())
    libraries.tree_attention = None
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        LIBRARIES["xformers"](problem())


def test_a_library_is_refused_with_the_reason(monkeypatch):
    """Missing; on a processor; in a number format that it does not know; without what it wants."""
    monkeypatch.setattr(baselines, "absent", lambda: {"flashinfer"})
    assert refused("flashinfer", problem()) == "flashinfer is not installed"
    assert refused("xformers", problem()) == "it is for CUDA, the tensors are on cpu"
    on_gpu = SimpleNamespace(query=SimpleNamespace(is_cuda=True, dtype=torch.float32), prefix=0)
    assert refused("xformers", on_gpu) == "it takes float16 and bfloat16, not float32"
    on_gpu.query.dtype = torch.bfloat16
    assert refused("xformers", on_gpu) == "it needs a prefix"
    on_gpu.prefix = 1
    assert refused("xformers", on_gpu) is None
