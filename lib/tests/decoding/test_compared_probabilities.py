"""Rules that compare with the drafter's probabilities get them from every drafter that has some, and other rules do
not pay for them.
"""

from types import SimpleNamespace

import pytest
import torch

from lib.decoding import generate, in_batches
from lib.drafters.adaptive import AdaptiveDrafter, Schedule
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import make
from lib.tests import small_heads, small_models
from lib.verify.rules import RULES
from lib.verify.warping import warp

TARGET = small_models.llama(3, layers=3)
PAIR = SimpleNamespace(target=TARGET, draft_model=small_models.related(TARGET, 4, noise=0.2))
BATCH, MASK = next(in_batches(small_models.prompts(5, (4, 9, 17)), 3))
GROWN = {"medusa": "ddtree@8", "block": "ddtree@8", "jetspec": "ddtree@8", "dspark": "dyspec@8"}
KINDS = ["model", "confident:0.1", *small_heads.DRAFTERS]


def made(kind):
    folder = small_heads.folder(kind, TARGET) if kind in small_heads.DRAFTERS else None
    return make(kind, PAIR, **{} if folder is None else {"folder": folder})


def drafts_of(drafter, shape, rule, **settings):
    """The drafts of a call, and the decision of each."""
    found = []
    generate(TARGET, drafter, BATCH, attention_mask=MASK, shape=shape, rule=rule, max_new_tokens=12, **settings,
             temperature=0.0 if rule == "greedy" else 1.0, generator=torch.Generator().manual_seed(1),
             observe=lambda _, drafts, decided: found.extend(zip(drafts, decided)))
    return found


@pytest.mark.parametrize("rule", [name for name, each in RULES.items() if each.compares])
@pytest.mark.parametrize("kind, shape", [*((kind, "kary:2@6") for kind in KINDS),
                                         *((kind, GROWN.get(kind, "eagle2:2,3@6")) for kind in KINDS
                                           if "confident" not in kind)])
def test_a_rule_gets_the_probabilities_that_it_compares_with(kind, shape, rule):
    drafter = made(kind)
    found = [draft for draft, _ in drafts_of(drafter, shape, rule) if draft.tree.budget]
    assert found
    for draft in found:
        for node in range(draft.tree.size):
            children = sorted(draft.tree.children(node), key=lambda child: draft.tree.rank[child])
            if children:
                own = draft.probs[node]
                torch.testing.assert_close(own.sum(), torch.ones_like(own.sum()), atol=1e-5, rtol=0)
                best = own.topk(1 + int(draft.tree.rank[children].max())).values[draft.tree.rank[children].copy()]
                torch.testing.assert_close(own[draft.tokens[children]], best)
    assert all(draft.probs is None for draft, _ in drafts_of(drafter, shape, "greedy")) or "confident" in kind


def test_the_decision_is_that_of_the_definition():
    """On the distributions of the drafter's own model, computed from the whole text."""
    drafter, texts = LanguageModelDrafter(PAIR.draft_model), [row[mask].tolist() for row, mask in zip(BATCH, MASK)]
    rounds = []
    done = generate(TARGET, drafter, BATCH, attention_mask=MASK, shape="chain:3", rule="deterministic", temperature=1.0,
                    max_new_tokens=12, generator=torch.Generator().manual_seed(1),
                    observe=lambda rows, drafts, decided: rounds.append([*zip(rows, drafts, decided)]))
    texts = [[*text, written[0]] for text, written in zip(texts, done.new_tokens)]
    assert any(accepted for each in rounds for _, _, (accepted, _) in each)
    for row, draft, (accepted, bonus) in (one for each in rounds for one in each):
        context = torch.tensor([[*texts[row], *draft.token_list[1:]]])
        p, q = (warp(model(context).logits[0, len(texts[row]) - 1 :], 1.0) for model in (TARGET, PAIR.draft_model))
        passes = [bool(p[node][token] >= q[node][token]) for node, token in enumerate(draft.token_list[1:])]
        assert accepted == [*range(1, 1 + [*passes, False].index(False))]
        texts[row] += [*draft.tokens_of(accepted), bonus]


def test_wrapped_drafters_pass_the_question_on():
    adaptive = AdaptiveDrafter(LanguageModelDrafter(PAIR.draft_model), Schedule())
    assert all(draft.probs is not None for draft, _ in drafts_of(adaptive, "chain:4", "conservative"))
    with pytest.raises(ValueError, match="use a drafter that has some, such as 'model' or a head"):
        drafts_of(make("lookup", PAIR), "chain:4", "conservative")
