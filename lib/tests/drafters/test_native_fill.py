"""A tree that is filled in one call is, bit for bit, the tree that is filled level by level."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.packed import pack
from lib.forward.passes import ForwardPass
from lib.forward.reduced import first_tokens, reduced
from lib.kernels import build
from lib.lab.timing import clocked
from lib.tests import live, small_heads, small_models
from lib.trees import Tree, named, shapes

KNOWN = 50  # tokens: of the last vector of logits a part is empty
SHARES = st.sampled_from([0.0, 0.4, 1.0])  # of the deepest path that a round accepts
GAPS = Tree([-1, 0, 0, 2, 2, 3, 1], [0, 1, 4, 0, 2, 3, 1])  # ranks that are left out, parents in any order
SHAPES = st.sampled_from(["chain:1", "chain:4", "kary:2@6", "expansion:2,2,1", "independent:3@7", GAPS])


def drafter(dtype, known=None) -> LanguageModelDrafter:
    """A drafter of all tokens, of the first so many, or of these."""
    if refused := build.unavailable():
        pytest.skip(refused)
    model = small_models.llama(3, vocabulary=KNOWN, dtype=dtype)
    if known is not None:
        model = first_tokens(model, known) if isinstance(known, int) else reduced(model, torch.tensor(known))
    return LanguageModelDrafter(model)


def deepest(tree: Tree) -> list[int]:
    """The nodes from below the root to the first of the deepest."""
    node, path = int(tree.depth.argmax()), []
    while node:
        path.insert(0, node)
        node = int(tree.parents[node])
    return path


def rounds(drafter, prompts, plan):
    """The drafts of rounds that accept shares of their deepest paths; then the cache's keys, and the calls."""
    drafter.start(prompts)
    drafter.commit([[] for _ in prompts], [7] * len(prompts))
    drafted = []
    for shape, shares in plan:
        tree = named(shape)
        drafts, path = drafter.propose(tree, None), deepest(tree)
        drafted.append([(draft.tree, draft.token_list, draft.proposal) for draft in drafts])
        drafter.commit([path[: int(share * len(path))] for share in shares[: len(prompts)]],
                       [3 + row for row in range(len(prompts))])
    kept = [layer.keys[row, :, :length] for layer in drafter.cache.layers
            for row, length in enumerate(drafter.cache.rows.as_list)]
    return drafted, kept, drafter.calls, drafter.levels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    plan=st.lists(st.tuples(SHAPES, st.tuples(SHARES, SHARES, SHARES)), min_size=1, max_size=4),
    known=st.sampled_from([None, 17, [*range(2, 50, 2)]]),
    seed=st.integers(0, 99),
)
def test_one_call_drafts_what_a_call_per_level_drafts(lengths, plan, dtype, known, seed):
    at_once, by_level = drafter(dtype, known), drafter(dtype, known)
    prompts = small_models.prompts(seed, lengths, KNOWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "fills", False)
        expected, kept, *counted = rounds(by_level, prompts, plan)
    found, held, *count = rounds(at_once, prompts, plan)
    assert found == expected and count == counted
    assert all(torch.equal(one, other) for one, other in zip(held, kept, strict=True))


def started(model, prompt=4):
    model.start(small_models.prompts(0, [prompt]))
    model.commit([[]], [5])
    return model


def test_the_call_counts_as_time_in_a_model():
    model = started(drafter(torch.float32))
    with clocked() as clock:
        model.propose(shapes.chain(2), None)
    assert clock.seconds > 0


def test_of_equals_the_first_come_first():
    model = drafter(torch.float32)
    with torch.no_grad():  # three kinds of tokens: equal scores 17 and 16 places apart
        model.model.lm_head.weight.copy_(model.model.lm_head.weight[torch.arange(KNOWN) % 3])
    first = started(model).propose(shapes.independent(40, 1), None)[0].token_list[1:]
    best = {token % 3: place for place, token in reversed(list(enumerate(first)))}  # kind -> where its first one stands
    assert first == sorted(first, key=lambda token: (best[token % 3], token)) and len(best) == 3


@pytest.mark.parametrize("proposal", ["top_k", "iid"])
def test_what_needs_probabilities_goes_level_by_level(proposal, monkeypatch):
    monkeypatch.setattr(ForwardPass, "fill", lambda *given: pytest.fail("a native call gives no probabilities"))
    model = started(LanguageModelDrafter(small_models.llama(3, dtype=torch.float32), proposal=proposal))
    model.ask_probs(True)

    class First:
        def categorical(self, probs, **kwargs):
            return int(probs.argmax())

    assert model.propose(shapes.chain(2), First())[0].probs is not None


def test_a_rank_beyond_the_vocabulary_is_refused():
    model = drafter(torch.float32, 3)
    model.start([torch.tensor([1, 2])])
    model.commit([[]], [1])
    with pytest.raises(ValueError, match="rank 3, the drafter knows 3 tokens"):
        model.propose(shapes.independent(4, 1), None)


# --------------------------------------------------------------------------------------------------------------- heads


HEADS = {"eagle3": {}, "eagle3 some": dict(draft_vocab_size=30),
         "eagle3 own": dict(draft_vocab_size=30, own_output=True, own_embedding=True),
         "eagle3 normed": dict(draft_vocab_size=30, norm_before_residual=True)}


def decoded(name, dtype, shape, natively, seed):
    """The tokens of all drafts of a head while a batch of uneven rows is decoded, and the cache's keys at the end."""
    target = small_models.llama(3, vocabulary=KNOWN, layers=3, dtype=dtype)
    kind = name.partition(" ")[0]
    drafter = small_heads.DRAFTERS[kind](target, pack(small_heads.head(kind, target, 1, **HEADS[name])))
    drafts, propose = [], drafter.propose

    def spied(*given):
        made = propose(*given)
        drafts.append([draft.token_list for draft in made])
        return made

    drafter.propose = spied
    with pytest.MonkeyPatch.context() as patch:
        if not natively:
            patch.setattr("lib.drafters.eagle3.head_fill", lambda *parts: None)
        prompts = small_models.prompts(seed, (3, 9, 1), KNOWN)
        done = live.decode(target, drafter, prompts, shape=shape, max_new_tokens=12)
    assert (drafter.filling is not None) == (natively and type(drafter.output) is torch.nn.Linear)
    return drafts, done.new_tokens, drafter.calls


@pytest.mark.parametrize("name", HEADS)
@settings(deadline=None, max_examples=8)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_a_head_drafts_in_one_call_what_it_drafts_level_by_level(name, shape, seed):
    if refused := build.unavailable():
        pytest.skip(refused)
    at_once, by_level = (decoded(name, torch.float32, shape, natively, seed) for natively in (True, False))
    assert at_once == by_level


@pytest.mark.parametrize("name", HEADS)
def test_in_bfloat16_drafts_differ_by_rounding_alone(name):
    if refused := build.unavailable():
        pytest.skip(refused)
    one, other = (decoded(name, torch.bfloat16, "kary:2@6", natively, 3) for natively in (True, False))
    first = [sum(a == b for own, theirs in zip(one[0][0], other[0][0]) for a, b in zip(own, theirs)), 3 * 7]
    assert one[1] == other[1] and first[0] >= 0.8 * first[1]
