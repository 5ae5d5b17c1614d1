"""A tree that is filled in one call is, bit for bit, the tree that is filled level by level."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters.eagle3 import Eagle3Drafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.packed import pack
from lib.forward.passes import ForwardPass
from lib.forward.reduced import first_tokens, reduced
from lib.kernels import build
from lib.tests import live, small_heads, small_models
from lib.tests.drafters.made import begin
from lib.trees import Tree, named, shapes

pytestmark = pytest.mark.skipif(build.unavailable() is not None, reason="the machine has no kernels")
VOCABULARY = 50  # of the last vector of logits a part is empty
SHARES = st.sampled_from([0.0, 0.4, 1.0])  # of the deepest path that a round accepts
GAPS = Tree([-1, 0, 0, 2, 2, 3, 1], [0, 1, 4, 0, 2, 3, 1])  # ranks that are left out, parents in any order
SHAPES = st.sampled_from(["chain:1", "chain:4", "kary:2@6", "expansion:2,2,1", "independent:3@7", GAPS])


def drafter(dtype, tokens=None) -> LanguageModelDrafter:
    """A drafter of all tokens, of the first so many, or of these."""
    model = small_models.llama(3, vocabulary=VOCABULARY, dtype=dtype)
    if tokens is not None:
        model = first_tokens(model, tokens) if isinstance(tokens, int) else reduced(model, torch.tensor(tokens))
    return LanguageModelDrafter(model)


def rounds(drafter, prompts, plan):
    """The drafts of rounds that accept shares of their deepest paths; then the cache's keys, and the calls."""
    drafter.start(prompts)
    drafter.commit([[] for _ in prompts], [7] * len(prompts))
    drafted = []
    for shape, shares in plan:
        tree = named(shape)
        drafts, path = drafter.propose(tree, None), tree.path(int(tree.depth.argmax()))[1:]
        drafted.append([(draft.tree, draft.token_list, draft.proposal) for draft in drafts])
        drafter.commit([list(path[: int(share * len(path))]) for share in shares[: len(prompts)]],
                       [3 + row for row in range(len(prompts))])
    keys = [layer.keys[row, :, :length] for layer in drafter.cache.layers
            for row, length in enumerate(drafter.cache.rows.as_list)]
    return drafted, keys, drafter.calls, drafter.levels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3), seed=st.integers(0, 99),
       plan=st.lists(st.tuples(SHAPES, st.tuples(SHARES, SHARES, SHARES)), min_size=1, max_size=4),
       tokens=st.sampled_from([None, 17, [*range(2, 50, 2)]]))
def test_one_call_drafts_what_a_call_per_level_drafts(lengths, plan, dtype, tokens, seed):
    prompts = small_models.prompts(seed, lengths, VOCABULARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "fills", False)
        expected, expected_keys, *expected_counts = rounds(drafter(dtype, tokens), prompts, plan)
    found, keys, *counts = rounds(drafter(dtype, tokens), prompts, plan)
    assert found == expected and counts == expected_counts
    assert all(torch.equal(*pair) for pair in zip(keys, expected_keys, strict=True))


def test_of_equals_the_first_come_first():
    model = drafter(torch.float32)
    with torch.no_grad():  # three kinds of tokens: equal scores 17 and 16 places apart
        model.model.lm_head.weight.copy_(model.model.lm_head.weight[torch.arange(VOCABULARY) % 3])
    begin(model)
    _, *first = model.propose(shapes.independent(40, 1), None)[0].token_list
    best = {token % 3: index for index, token in reversed(list(enumerate(first)))}  # kind -> index of its first one
    assert first == sorted(first, key=lambda token: (best[token % 3], token)) and len(best) == 3


# --------------------------------------------------------------------------------------------------------------- heads


HEADS = {"all": {}, "some": dict(draft_vocab_size=30), "normed": dict(draft_vocab_size=30, norm_before_residual=True),
         "own": dict(draft_vocab_size=30, own_output=True, own_embedding=True)}


def decoded(name, dtype, shape, natively, seed):
    """The tokens of all drafts of a head while a batch of uneven rows is decoded; the text; and the calls."""
    target, drafts = small_models.llama(3, vocabulary=VOCABULARY, layers=3, dtype=dtype), []
    with pytest.MonkeyPatch.context() as patch:
        if not natively:
            patch.setattr("lib.drafters.eagle3.served", lambda *parts: None)
        drafter = Eagle3Drafter(target, pack(small_heads.head("eagle3", target, 1, **HEADS[name])))
        done = live.decode(target, drafter, small_models.prompts(seed, (3, 9, 1), VOCABULARY), shape=shape,
                           max_new_tokens=12, observe=lambda rows, made, _: drafts.extend(made))
    assert (drafter.native_fill is not None) == (natively and isinstance(drafter.output, torch.nn.Module))
    return [draft.token_list for draft in drafts], done.new_tokens, drafter.calls


@pytest.mark.parametrize("name", HEADS)
@settings(deadline=None, max_examples=8)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_a_head_drafts_in_one_call_what_it_drafts_level_by_level(name, shape, seed):
    at_once, by_level = (decoded(name, torch.float32, shape, natively, seed) for natively in (True, False))
    assert at_once == by_level


@pytest.mark.parametrize("name", HEADS)
def test_in_bfloat16_drafts_differ_by_rounding_alone(name):
    (drafts, text, _), (others, other_text, _) = (
        decoded(name, torch.bfloat16, "kary:2@6", natively, 3) for natively in (True, False))
    equal = [a == b for draft, other in zip(drafts[:3], others[:3]) for a, b in zip(draft, other)]
    assert text == other_text and sum(equal) >= 0.8 * len(equal)
