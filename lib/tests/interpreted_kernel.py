"""The CUDA kernel as Triton's interpreter runs it, in a process that has TRITON_INTERPRET=1: see `test_triton.py`."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.attention.backends import reference
from lib.attention.masks import SharedMask
from lib.attention.operator import tree_attention
from lib.attention.triton import fused
from lib.tests.attention.test_attention import TOLERANCE, error


@settings(deadline=None, max_examples=12)
@given(group=st.integers(1, 3), nodes=st.integers(1, 40), prefix=st.lists(st.integers(0, 150), min_size=2, max_size=2),
       dim=st.sampled_from([16, 24]), dtype=st.sampled_from([torch.float32, torch.float16]), splits=st.integers(1, 4),
       one_tree=st.booleans(), spare=st.sampled_from([3, 1000]), seed=st.integers(0, 999))
def test_equals_the_reference_for_any_split(group, nodes, prefix, dim, dtype, splits, one_tree, spare, seed):
    """Output and log-sum-exp: ragged prefixes, ranges without keys, masks of more than a word, NaN behind each row, in
    buffers that may be much larger than their texts.
    """
    generator = torch.Generator().manual_seed(seed)
    slots = max(prefix) + nodes + spare
    query, key, value = (torch.randn(shape, generator=generator).to(dtype) for shape in (
        (2, 2 * group, nodes, dim), (2, 2, slots, dim), (2, 2, slots, dim)))
    mask = torch.eye(nodes, dtype=torch.bool) | (torch.rand(2, nodes, nodes, generator=generator) < 0.4).tril()
    mask = mask[0] if one_tree else mask
    for row, length in enumerate(prefix):
        key[row, :, length + nodes :] = value[row, :, length + nodes :] = float("nan")
    wide = [x.double() for x in (query, key, value)]
    truth, true_lse = reference(*wide, SharedMask(mask), prefix, dim**-0.5)
    ours, lse = fused(query, key, value, SharedMask(mask), prefix, dim**-0.5, splits=splits)
    assert error(ours, truth) <= TOLERANCE[dtype]
    torch.testing.assert_close(lse.double(), true_lse, rtol=0, atol=1e-5)


def test_as_a_backend_it_has_the_references_windows_sinks_and_caps():
    """Without a window, where a node sees the prefix alone too."""
    torch.manual_seed(0)
    mask = torch.eye(6, dtype=torch.bool) | (torch.rand(6, 6) < 0.4).tril()
    query, (key, value), prefix = torch.randn(2, 4, 6, 16), torch.randn(2, 2, 2, 40, 16), torch.tensor([30, 11])
    for more in (dict(softcap=20.0, window=5), dict(window=8, sinks=torch.linspace(-1, 2, 4)), dict(softcap=0.7), {}):
        mask[1] &= "window" in more
        ours, truth = (tree_attention(query, key, value, mask, prefix, backend=name, **more)
                       for name in ("triton", "reference"))
        torch.testing.assert_close(ours, truth, atol=1e-5, rtol=1e-5)
