"""Samples of several drafters in one tree: the law of a round by enumeration, and the loop on small models."""

import math
from itertools import product

import pytest
import torch

from lib.drafters.adaptive import first_levels
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.replay import live
from lib.tests import small_models
from lib.trees import shapes
from lib.verify import Draft, GeneratorDraws, verify
from lib.verify.draft import merge_samples
from lib.verify.proof import enumeration
from lib.verify.proof.enumeration import distance, drafts, tokens_of
from lib.verify.rules import multi_step

VOCABULARY = 3


def language(seed, sharpness=1.0):
    """Random conditionals: a path of tokens -> float64[V]."""
    return lambda path: torch.softmax(sharpness * torch.randn(
        VOCABULARY, generator=torch.Generator().manual_seed(seed + hash(path) % 9973), dtype=torch.float64), 0)


def law_of(rule, target, sources, shape):
    """The exact law of a round on the merged drafts of these languages."""
    parts_of = product(*(list(drafts(source, shape, "iid")) for source in sources))
    return enumeration.law_of(rule, target, (
        (math.prod(chance for chance, _ in parts), merge_samples([draft for _, draft in parts])) for parts in parts_of))


@pytest.mark.parametrize("shape", [shapes.chain(2), shapes.star(2)])
@pytest.mark.parametrize("seed", range(3))
def test_samples_of_two_drafters_leave_the_targets_law(shape, seed):
    target, sources = language(seed, 1.5), [language(seed + 100), language(seed + 200, 2.0)]
    assert distance(law_of(multi_step, target, sources, shape), target, 3) < 1e-12


@pytest.mark.parametrize("seed", range(2))
def test_first_levels_keep_each_drafters_proposal(seed):
    """A merged draft that is cut to its first levels still has the proposal of each drafter."""
    def shorter(draft, probs, draws):
        first, kept = first_levels(draft, 1)
        accepted, bonus = multi_step(first, probs[kept], draws)
        return [kept[node] for node in accepted], bonus

    target, sources = language(seed, 1.5), [language(seed + 100), language(seed + 200, 2.0)]
    assert distance(law_of(shorter, target, sources, shapes.chain(2)), target, 3) < 1e-12


def test_one_proposal_for_all_would_be_biased():
    """Without the separate proposals, with their mixture instead, the law may differ from the target's."""
    def mixed(draft, probs, draws):
        return multi_step(Draft(draft.tree, draft.tokens, "iid", draft.probs, draft.counts), probs, draws)

    found = [distance(law_of(mixed, language(seed), [language(seed + 100), language(seed + 200, 2.0)], shapes.chain(1)),
                      language(seed), 2) for seed in range(6)]
    assert max(found) > 1e-4


def test_each_drafter_keeps_its_proposal_and_its_counts():
    model = small_models.llama(3)
    other = small_models.related(model, 4, noise=0.4)
    merged = MergedDrafter([LanguageModelDrafter(source, proposal="iid") for source in (model, other)])
    merged.start(small_models.prompts(5, (3, 9)))
    merged.commit([[], []], [1, 2])
    for row, draft in enumerate(merged.propose(shapes.kary(2, 2), GeneratorDraws(torch.Generator().manual_seed(0)))):
        for (probs, counts), drafter in zip(draft.shares, merged.drafters, strict=True):
            single = drafter.drafts[row]
            node_of = {path: node for node, path in enumerate(tokens_of(single))}
            for node, path in enumerate(tokens_of(draft)):
                assert int(counts[node]) == (single.times_drawn()[node_of[path]] if path in node_of else 0)
                if path in node_of:
                    torch.testing.assert_close(probs[node], single.probs[node_of[path]])
        with pytest.raises(ValueError, match="merges samples of 2 drafters"):
            verify("k_seq", draft, torch.full((draft.tree.size, small_models.VOCABULARY), 1 / small_models.VOCABULARY),
                   GeneratorDraws(torch.Generator()))


def test_merged_samples_decode_under_their_rule():
    model = small_models.llama(3)
    merged = MergedDrafter([LanguageModelDrafter(small_models.related(model, seed, noise=0.4), proposal="iid")
                            for seed in (4, 5)])
    done = live.decode(model, merged, small_models.prompts(5, (3, 9, 5)), shape="kary:2@6", rule="multi_step",
                       temperature=1.0, max_new_tokens=12, seed=0)
    assert [len(row) for row in done.new_tokens] == [12] * 3 and any(found.accepted for found in done.rounds)


def test_what_cannot_be_merged_is_refused():
    model = small_models.llama(3)
    with pytest.raises(ValueError, match="iid, top_k"):
        MergedDrafter([LanguageModelDrafter(model, proposal="iid"), LanguageModelDrafter(model)])
    chosen = next(draft for _, draft in drafts(language(1), shapes.chain(1), "top_k"))
    with pytest.raises(ValueError, match="proposals are top_k"):
        merge_samples([chosen])
