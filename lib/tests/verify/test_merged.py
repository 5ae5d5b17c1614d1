"""Samples of several drafters in one tree: the law of a round by enumeration, and the drafter that merges models."""

import math
from itertools import product

import pytest
import torch

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.tests import small_models
from lib.trees import shapes
from lib.verify import Draft, GeneratorDraws, verify
from lib.verify.draft import merge_samples
from lib.verify.proof import enumeration
from lib.verify.proof.enumeration import distance, drafts, tokens_of
from lib.verify.proof.languages import random_pair
from lib.verify.rules import multi_step


def distance_of(rule, seed, shape):
    """Of a rule on the merged samples of two drafters, from the target's law."""
    (target, first), (_, second) = random_pair(seed), random_pair(seed + 100)
    parts = product(*(list(drafts(language, shape, "iid")) for language in (first, second)))
    merged = ((math.prod(chance for chance, _ in pair), merge_samples([draft for _, draft in pair])) for pair in parts)
    return distance(enumeration.law_of(rule, target, merged), target, shape.max_depth + 1)


@pytest.mark.parametrize("shape", [shapes.chain(2), shapes.star(2)])
@pytest.mark.parametrize("seed", range(3))
def test_samples_of_two_drafters_leave_the_targets_law(shape, seed):
    assert distance_of(multi_step, seed, shape) < 1e-12


@pytest.mark.parametrize("seed", range(2))
def test_a_part_of_a_merged_draft_keeps_each_drafters_proposal(seed):
    def first_level(draft, probs, draws):
        nodes = [node for node in range(draft.tree.size) if draft.tree.depth[node] <= 1]
        accepted, bonus = multi_step(draft.part(shapes.star(len(nodes) - 1), nodes), probs[nodes], draws)
        return [nodes[node] for node in accepted], bonus

    assert distance_of(first_level, seed, shapes.chain(2)) < 1e-12


def test_one_proposal_for_all_would_be_biased():
    """Without the separate proposals, with their mixture instead, the law differs from the target's."""
    def mixed(draft, probs, draws):
        mixture = torch.stack([q for q, _ in draft.shares]).mean(0)
        return multi_step(Draft(draft.tree, draft.tokens, "iid", mixture, draft.counts), probs, draws)

    assert max(distance_of(mixed, seed, shapes.chain(1)) for seed in range(6)) > 1e-4


def test_each_drafter_keeps_its_proposal_and_its_counts():
    model = small_models.llama(3)
    other = small_models.related(model, 4, noise=0.4)
    merged = MergedDrafter(*(LanguageModelDrafter(source, proposal="iid") for source in (model, other)))
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
            verify("k_seq", draft, torch.ones(draft.tree.size, small_models.VOCABULARY), GeneratorDraws(None))


def test_drafts_of_chosen_children_are_no_samples_to_merge():
    chosen = next(draft for _, draft in drafts(random_pair(1)[1], shapes.chain(1), "top_k"))
    with pytest.raises(ValueError, match="proposals are top_k"):
        merge_samples([chosen])
