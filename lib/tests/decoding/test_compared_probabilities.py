"""Rules that compare with the drafter's probabilities get them from every drafter that has some, and other rules do
not pay for them.
"""

from types import SimpleNamespace

import pytest
import torch

from lib.decoding import generate, in_batches
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import make
from lib.tests import small_heads, small_models
from lib.verify.warping import warp

TARGET = small_models.llama(3, layers=3)
PAIR = SimpleNamespace(target=TARGET, draft_model=small_models.related(TARGET, 4, noise=0.2))
BATCH, MASK = next(in_batches(small_models.prompts(5, (4, 9, 17)), 3))


def drafts_of(drafter, shape, rule):
    """The drafts of a call."""
    drafts = []
    generate(TARGET, drafter, BATCH, attention_mask=MASK, shape=shape, rule=rule, max_new_tokens=12,
             temperature=0.0 if rule == "greedy" else 1.0, generator=torch.Generator().manual_seed(1),
             observe=lambda _, round_drafts, __: drafts.extend(round_drafts))
    return drafts


@pytest.mark.parametrize("shape", ["kary:2@6", "dyspec@6"])
@pytest.mark.parametrize("kind", ["model", *small_heads.DRAFTERS])
def test_a_rule_gets_the_probabilities_that_it_compares_with(kind, shape):
    options = {"folder": small_heads.folder(kind, TARGET)} if kind in small_heads.DRAFTERS else {}
    drafter = make(kind, PAIR, options)
    drafts = [draft for draft in drafts_of(drafter, shape, "conservative") if draft.tree.budget]
    assert drafts
    for draft in drafts:
        for node in range(draft.tree.size):
            children = sorted(draft.tree.children(node), key=lambda child: draft.tree.rank[child])
            if children:
                q = draft.probs[node]
                torch.testing.assert_close(q.sum(), torch.ones_like(q.sum()), atol=1e-5, rtol=0)
                best = q.topk(1 + int(draft.tree.rank[children].max())).values[draft.tree.rank[children].copy()]
                torch.testing.assert_close(q[draft.tokens[children]], best)
    assert all(draft.probs is None for draft in drafts_of(drafter, shape, "greedy"))


def test_the_decision_is_that_of_the_definition():
    """On the distributions of the drafter's own model, computed from the whole text."""
    drafter, rounds = LanguageModelDrafter(PAIR.draft_model), []
    done = generate(TARGET, drafter, BATCH, attention_mask=MASK, shape="chain:3", rule="deterministic", temperature=1.0,
                    max_new_tokens=12, generator=torch.Generator().manual_seed(1),
                    observe=lambda rows, drafts, decisions: rounds.extend(zip(rows, drafts, decisions)))
    texts = [[*ids[mask].tolist(), written[0]] for ids, mask, written in zip(BATCH, MASK, done.new_tokens)]
    assert any(accepted for _, _, (accepted, _) in rounds)
    for row, draft, (accepted, bonus) in rounds:
        context = torch.tensor([[*texts[row], *draft.token_list[1:]]])
        p, q = (warp(model(context).logits[0, len(texts[row]) - 1 :], 1.0) for model in (TARGET, PAIR.draft_model))
        passes = [bool(p[node][token] >= q[node][token]) for node, token in enumerate(draft.token_list[1:])]
        assert accepted == [*range(1, 1 + [*passes, False].index(False))]
        texts[row] += [*draft.tokens_of(accepted), bonus]
