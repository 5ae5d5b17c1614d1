"""Boost-tuning on a toy: a frequent language and a rare one, which the first drafter has no time to learn; and how what
it buys is judged.
"""

import numpy as np
import pytest
import torch

from lib.making import boosting
from lib.making.boosting import boost, covered
from lib.making.corpus import mixture
from lib.making.loop import Plan
from lib.tests import small_models

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


def test_samples_are_prompts_as_the_target_goes_on():
    target = small_models.llama(4, dtype=torch.float32)
    streams = {kind: np.arange(200, dtype=np.uint16) % 23 + 1 for kind in mixture.KINDS}
    made = boosting.samples(target, streams, 5, seed=0)
    assert made.shape == (5, boosting.PROMPT + boosting.CONTINUED)
    said = target.generate(made[:, : boosting.PROMPT], max_new_tokens=boosting.CONTINUED, do_sample=False,
                           pad_token_id=0,
                           eos_token_id=None)
    assert torch.equal(made, said)


def test_both_ways_begin_with_the_same_drafter_and_are_judged_by_what_they_cover(monkeypatch, tmp_path):
    monkeypatch.setattr(boosting, "PROMPT", PROMPT)
    monkeypatch.setattr(boosting, "CONTINUED", LENGTH + 1 - PROMPT)
    samples = toy()
    groups = boosting.train(drafter(1), samples, tmp_path, plan=PLAN, compiled=False)
    boosted, alike = groups[boosting.BOOSTED], groups[boosting.ALIKE]
    assert boosted[0] is alike[0] and len(boosted) == len(alike) == 2
    found = boosting.coverage(groups, samples).set_index(["group", "drafters"])
    for group, (first, second) in groups.items():
        one, other = (covered(model, samples, PROMPT) for model in (first, second))
        assert found.value[group, 1] == pytest.approx(one.float().mean().item())
        assert found.value[group, 2] == pytest.approx((one | other).float().mean().item())
    rare = found.value[boosting.BOOSTED, 2] - found.value[boosting.ALIKE, 2]
    assert rare > 0 and found.more_than_alike[boosting.BOOSTED, 2] == pytest.approx(rare)
