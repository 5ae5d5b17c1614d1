"""Compiled FlexAttention: the reference's result for any prefix, compiled once; refused with a reason."""

import pytest
import torch
from torch._dynamo.utils import counters

from lib.attention import tree_attention
from lib.attention.backends import refusal

SAMPLE = torch.zeros(1, 2, 3, 16)
needs_flex = pytest.mark.skipif(refusal("flex", SAMPLE, SAMPLE, SAMPLE) is not None, reason="it cannot be compiled")


@needs_flex
@torch.no_grad()
def test_equals_the_reference_and_no_new_prefix_compiles_anew():
    """A tree a row, grouped heads, NaN behind what is valid."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.eye(9, dtype=torch.bool) | (torch.rand(2, 9, 9, generator=generator) < 0.4).tril()
    compiled = []
    for prefix in (20, 33, 150, 77):
        query, key, value = (torch.randn(2, heads, 9 + more, 16, generator=generator)
                             for heads, more in ((4, 0), (2, prefix + 5), (2, prefix + 5)))
        truth = tree_attention(query, key, value, mask, prefix, backend="reference")
        key[:, :, prefix + 9 :] = value[:, :, prefix + 9 :] = float("nan")
        ours = tree_attention(query, key, value, mask, prefix, backend="flex")
        torch.testing.assert_close(ours, truth, rtol=0, atol=2e-6)
        compiled.append(counters["stats"]["unique_graphs"])
    assert compiled[1:] == compiled[:1] * 3


@pytest.mark.parametrize("inputs, reason", [
    (torch.randn(1, 2, 3, 16, dtype=torch.float64), "not float64"),
    (torch.randn(1, 2, 3, 24), "not 24 and 24"),
])
def test_what_it_cannot_compile_is_refused(inputs, reason):
    with pytest.raises(ValueError, match=f"backend 'flex' cannot serve this call: .*{reason}; use backend='auto'"):
        tree_attention(inputs, inputs, inputs, torch.ones(3, 3, dtype=torch.bool).tril(), 0, backend="flex")


def test_on_the_processor_it_gives_no_log_sum_exp():
    with pytest.raises(ValueError, match="with log-sum-exps"):
        tree_attention(SAMPLE, SAMPLE, SAMPLE, torch.ones(3, 3).bool(), 0, backend="flex", return_lse=True)
