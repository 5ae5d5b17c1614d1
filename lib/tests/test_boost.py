"""Boost-tuning on a toy: a frequent language and a rare one, which the first drafter has no time to learn."""

import pytest
import torch

from lib.tests import small_models
from lib.training.boost import boost, covered
from lib.training.loop import Plan

LENGTH, PROMPT, VOCABULARY = 9, 2, 12
PLAN = Plan(steps=50, rows=16, length=LENGTH, learning_rate=3e-3, seed=5)


def toy():
    """Nine in ten sentences count up from any token, one in ten counts down; the first token says which."""
    sentences = []
    for number in range(60):
        step, mark = (-1, 1) if number % 10 == 0 else (1, 0)
        sentences.append([mark] + [2 + (number * 7 + step * place) % (VOCABULARY - 2) for place in range(LENGTH)])
    return torch.tensor(sentences)


def drafter(seed):
    return small_models.llama(seed, hidden=32, layers=1, vocabulary=VOCABULARY, dtype=torch.float32)


def trained(folder, plan=PLAN):
    models = [drafter(1), drafter(2)]
    return models, boost(models, toy(), PROMPT, plan, folder, compiled=False, report=lambda record: None)


def test_the_next_drafter_covers_what_the_first_does_not(tmp_path):
    samples = toy()
    (first, second), covers = trained(tmp_path)
    assert [torch.equal(found, covered(model, samples, PROMPT)) for model, found in zip((first, second), covers)]
    up = samples[:, 0] == 0
    assert covers[0][up].float().mean() > 0.8 > covers[0][~up].float().mean()
    assert covers[1][~covers[0]].float().mean() > 0.8, "it has learnt what was left to it"
    assert (covers[0] | covers[1]).sum() > covers[0].sum()


def test_training_is_repeatable(tmp_path):
    plan = Plan(steps=6, rows=8, length=LENGTH, learning_rate=1e-2, seed=5)
    (one, _), _ = trained(tmp_path / "a", plan)
    (other, _), _ = trained(tmp_path / "b", plan)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@torch.no_grad()
def test_covered_is_what_greedy_decoding_says():
    model, samples = drafter(3), toy()[:8]
    asked = samples[:, :PROMPT]
    said = model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=LENGTH + 1 - PROMPT,
                          do_sample=False, pad_token_id=0, eos_token_id=None)
    own = torch.cat([samples[:4], said[4:]])
    assert covered(model, own, PROMPT, rows=3).tolist() == [torch.equal(a, b) for a, b in zip(own, said)]
    assert covered(model, own, PROMPT)[4:].all()


def test_samples_that_do_not_fit_the_plan_are_refused(tmp_path):
    with pytest.raises(ValueError, match="plan.length \\+ 1 = 10 tokens"):
        boost([drafter(1)], toy()[:, :-1], PROMPT, PLAN, tmp_path)
