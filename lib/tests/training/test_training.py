"""Training: the schedule is a function of the step, the loss is the divergence, a stopped run goes on."""

import pytest
import torch
from torch.nn import functional as F

from lib.tests import small_models
from lib.training import loop


def test_the_schedule_decays_only_at_the_end():
    short, long = ([loop.rate_factor(step, steps, 0.3) for step in range(steps)] for steps in (400, 800))
    assert short[:280] == long[:280] and short[60] == 1.0
    assert short[-1] == pytest.approx(1 / 120) and all(a >= b for a, b in zip(short[280:], short[281:]))


def test_divergence_from_oneself_is_nothing_and_from_another_the_mean_over_tokens():
    tokens = torch.randint(0, small_models.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
    logits, teacher = (small_models.llama(seed)(tokens).logits for seed in (0, 1))
    assert loop.divergence(logits, logits).item() == pytest.approx(0, abs=1e-4)
    p, q = teacher.softmax(-1), logits.softmax(-1)
    assert loop.divergence(logits, teacher).item() == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-4)


def learning(model):
    """`learn` of `loop.run`: the cross-entropy of the next token."""
    def learn(tokens, step):
        loss = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return learn


def draw(step):
    return torch.randint(0, small_models.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(step))


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    plan = loop.TrainingPlan(steps=6, rows=2, length=8, learning_rate=1e-2, seed=0)

    def stop_at(step):
        def draw_until(now):
            if now == step:
                raise KeyboardInterrupt
            return draw(now)

        return draw_until

    whole, parts = (small_models.llama(0, dtype=torch.float32) for _ in range(2))
    loop.run(whole, draw, plan, learning(whole), tmp_path / "whole", checkpoint_seconds=0, report=lambda record: None)
    with pytest.raises(KeyboardInterrupt):
        loop.run(parts, stop_at(5), plan, learning(parts), tmp_path / "parts", checkpoint_seconds=0,
                 report=lambda record: None)
    fresh = small_models.llama(3, dtype=torch.float32)
    loop.run(fresh, draw, plan, learning(fresh), tmp_path / "parts", checkpoint_seconds=0, report=lambda record: None)
    for expected, found in zip(whole.parameters(), fresh.parameters()):
        torch.testing.assert_close(found, expected)


def test_a_schedule_ends_with_its_hours(tmp_path, monkeypatch):
    """By a clock on which a step takes 100 s, and from the middle on 200 s."""
    now, rates, reports = [0.0], [], []
    factor = loop.rate_factor
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop, "rate_factor", lambda *given: rates.append(factor(*given)) or rates[-1])
    plan = loop.TrainingPlan(steps=1000, rows=2, length=8, learning_rate=1e-2, seed=0, hours=5)

    def drawn_slowly(step):
        now[0] += 100 if step < 90 else 200
        return draw(step)

    model = small_models.llama(0, dtype=torch.float32)
    for _ in range(2):  # nothing is left to do for the second
        loop.run(model, drawn_slowly, plan, learning(model), tmp_path, report=reports.append)
    rates = rates[::2]  # of two optimisers, one group each
    assert reports[-1]["step"] == len(rates) and reports[-1]["hours_left"] == 0
    assert now[0] == pytest.approx(5 * 3600, abs=200)
    assert max(rates) == 1 and rates[-1] < 0.1 and rates[80:] == sorted(rates[80:], reverse=True)
