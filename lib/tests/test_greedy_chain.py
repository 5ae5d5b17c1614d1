"""A chain drafted in one call is, bit for bit, the chain that is drafted a level at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import shapes
from lib.drafters import LanguageModelDrafter
from lib.fused import FusedBlocks
from lib.native.products import weights_refusal
from lib.tests import small_models
from lib.tree import Tree

SHARES = st.sampled_from([0.0, 0.4, 1.0])
KNOWN = 50  # tokens, of which the last of three vectors of logits is only partly filled


def drafter(dtype, vocabulary=None) -> LanguageModelDrafter:
    if refused := weights_refusal([torch.zeros(8, 8, dtype=dtype)]):
        pytest.skip(refused)
    return LanguageModelDrafter(small_models.llama(3, vocabulary=KNOWN, dtype=dtype), vocabulary=vocabulary)


def rounds(drafter, prompts, plan):
    """The drafts of rounds that accept given shares of their chains, as lists; then the cache's keys, and the calls."""
    drafter.start(prompts)
    drafter.commit([[] for _ in prompts], [7] * len(prompts))
    said = []
    for length, shares in plan:
        drafts = drafter.propose(shapes.chain(length), None)
        said.append([draft.token_list for draft in drafts])
        drafter.commit([list(range(1, 1 + int(share * length))) for share in shares[: len(prompts)]],
                       [3 + row for row in range(len(prompts))])
    kept = [layer.keys[row, :, :length] for layer in drafter.cache.layers
            for row, length in enumerate(drafter.cache.rows.as_list)]
    return said, kept, drafter.calls


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    plan=st.lists(st.tuples(st.integers(1, 6), st.tuples(*[SHARES] * 3)), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    vocabulary=st.sampled_from([None, 17]),
    seed=st.integers(0, 99),
)
def test_one_call_says_what_a_call_a_level_says(lengths, plan, dtype, vocabulary, seed):
    at_once, by_level = drafter(dtype, vocabulary), drafter(dtype, vocabulary)
    prompts = small_models.prompts(seed, lengths, vocabulary or KNOWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedBlocks, "greedy_chain", None)
        said, kept, calls = rounds(by_level, prompts, plan)
    found, held, counted = rounds(at_once, prompts, plan)
    assert found == said and counted == calls
    assert all(torch.equal(one, other) for one, other in zip(held, kept, strict=True))


def test_of_equal_favourites_the_first_is_drafted():
    model = drafter(torch.float32)
    with torch.no_grad():
        model.model.lm_head.weight.copy_(torch.ones_like(model.model.lm_head.weight))
    model.start(small_models.prompts(0, [4]))
    model.commit([[]], [5])
    assert model.propose(shapes.chain(3), None)[0].token_list == [5, 0, 0, 0]


@pytest.mark.parametrize("shape", [Tree([-1, 0, 1], [0, 1, 0]), shapes.parse("kary:2@6"), shapes.chain(0)], ids=repr)
def test_only_chains_of_favourites_are_drafted_so(shape, monkeypatch):
    model, asked = drafter(torch.float32), []
    monkeypatch.setattr(FusedBlocks, "greedy_chain", lambda *given: asked.append(given))
    model.start(small_models.prompts(0, [4]))
    model.commit([[]], [5])
    assert model.propose(shape, None)[0].tree == shape and not asked


def test_a_chain_that_leaves_the_window_is_refused():
    model = LanguageModelDrafter(small_models.llama(3, dtype=torch.float32, window=16))
    model.start(small_models.prompts(0, [10]))
    model.commit([[]], [5])
    with pytest.raises(ValueError, match="needs 17 positions, its window has 16"):
        model.propose(shapes.chain(7), None)
