"""Token recycling against a dictionary that is filled by the book."""

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters.recycling import RecyclingDrafter
from lib.replay import live
from lib.tests import small_models
from lib.tests.replay.test_replay import trees
from lib.trees import shapes

VOCABULARY, CANDIDATES = 7, 3


def narrow(tree):
    return tree.last_rank < CANDIDATES


def by_the_book(known, shape, root):
    """The paths of tokens that the known candidates give the shape."""
    paths = {(): root}
    for choice in sorted(shape.choices(), key=len):
        above = paths.get(choice[:-1])
        if above in known:
            paths[choice] = known[above][choice[-1]]
    return paths


@settings(deadline=None, max_examples=60)
@given(st.lists(trees(8).filter(narrow), min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_drafts_are_the_last_candidates_of_every_verified_token(forest, seed):
    rng = random.Random(seed)
    drafter, known, roots = RecyclingDrafter(VOCABULARY, CANDIDATES), {}, [1, 2]
    drafter.start([torch.tensor([0]), torch.tensor([0])])
    drafter.commit([[], []], roots)
    for shape in forest:
        drafts = drafter.propose(shape, None)
        for draft, root in zip(drafts, roots, strict=True):
            found = dict(zip([(), *draft.tree.choices()], draft.tokens.tolist(), strict=True))
            assert found == by_the_book(known, shape, root)
        logits = torch.rand(2, shape.size, VOCABULARY, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
        for draft, own in zip(drafts, logits):
            for token, row in zip(draft.tokens.tolist(), own):
                known[token] = row.topk(CANDIDATES).indices.tolist()
        roots = [rng.randrange(VOCABULARY) for _ in roots]
        drafter.commit([[], []], roots, SimpleNamespace(logits=logits))


def test_the_memory_outlives_a_batch_and_helps_the_next():
    model = small_models.llama(3)
    prompts = small_models.prompts(5, (3, 9, 5))
    drafter = RecyclingDrafter(small_models.VOCABULARY)
    settings = dict(shape="kary:2@14", max_new_tokens=20)
    first, second = (live.decode(model, drafter, prompts, **settings) for _ in range(2))
    assert first.new_tokens == second.new_tokens
    assert len(second.rounds) < len(first.rounds) and (drafter.matrix >= 0).all(1).any()
    assert drafter.cache_bytes == small_models.VOCABULARY * 8 * 8


def test_what_the_matrix_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="candidates is 9; give 1 to 7"):
        RecyclingDrafter(VOCABULARY, 9)
    drafter = RecyclingDrafter(VOCABULARY, 2)
    drafter.start([torch.tensor([1])])
    with pytest.raises(ValueError, match="child of rank 2, the matrix 2 candidates"):
        drafter.propose(shapes.star(3), None)
