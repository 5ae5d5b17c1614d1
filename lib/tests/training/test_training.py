"""Training: the optimiser does what it says, windows and schedule are functions of the step, a stopped run goes on."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.training import data, family, loop, optim
from lib.training.corpus import mixture
from lib.training.data import windows
from lib.tests import small_models


def test_orthogonalised_updates_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 24, 64), (2, 64, 24), (1, 32, 32)):
        values = torch.linalg.svdvals(optim.orthogonalise(torch.randn(shape)))
        assert 0.3 < values.min() and values.max() < 1.3


def test_muon_steps_as_defined_matrix_by_matrix():
    torch.manual_seed(0)
    start, gradients = torch.randn(6, 10), [torch.randn(6, 10) for _ in range(3)]
    weight = start.clone().requires_grad_()
    optimiser = optim.Muon([weight], lr=0.1, momentum=0.9, weight_decay=0.2)
    expected, buffer = start.clone(), torch.zeros(6, 10)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimiser.step()
        buffer = 0.9 * buffer + 0.1 * gradient
        update = optim.orthogonalise((0.1 * gradient + 0.9 * buffer)[None])[0]
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * 0.2 * 10**0.5 * update
    torch.testing.assert_close(weight.detach(), expected)


def test_the_schedule_decays_only_at_the_end():
    short, long = ([optim.factor(step, steps, 0.3) for step in range(steps)] for steps in (400, 800))
    assert short[:280] == long[:280] and short[60] == 1.0
    assert short[-1] == pytest.approx(1 / 120) and all(a >= b for a, b in zip(short[280:], short[281:]))


def test_windows_depend_on_seed_and_step_alone():
    streams = {"a": np.arange(1000, dtype=np.uint16), "b": np.arange(2000, 2600, dtype=np.uint16)}
    draw = [
        windows(streams, {"a": 0.5, "b": 0.5}, 64, 17, seed, step) for seed, step in ((1, 5), (1, 5), (1, 6), (2, 5))
    ]
    assert torch.equal(draw[0], draw[1]) and not torch.equal(draw[0], draw[2]) and not torch.equal(draw[0], draw[3])
    assert (draw[0].diff(dim=1) == 1).all() and {int(row[0]) // 2000 for row in draw[0]} == {0, 1}


def test_distilling_from_oneself_costs_nothing_and_from_another_the_divergence():
    model, other = small_models.llama(0), small_models.llama(1)
    tokens = torch.randint(0, small_models.VOCABULARY, (2, 9))
    logits, teacher = model(tokens[:, :-1]).logits, other(tokens[:, :-1]).logits
    assert loop.distilling_loss(model)(logits, tokens).item() == pytest.approx(0, abs=1e-4)
    p, q = teacher.softmax(-1), logits.softmax(-1)
    expected = (p * (p / q).log()).sum(-1).mean().item()
    assert loop.distilling_loss(other)(logits, tokens).item() == pytest.approx(expected, rel=0.02)


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    plan = loop.Plan(steps=6, rows=2, length=8, learning_rate=1e-2, seed=0)

    def draw(step):
        return torch.randint(0, small_models.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(step))

    def stop_at(step):
        def draw_until(now):
            if now == step:
                raise KeyboardInterrupt
            return draw(now)

        return draw_until

    whole, parts = (small_models.llama(0, dtype=torch.float32) for _ in range(2))
    loop.train(whole, draw, plan, loop.plain_loss, tmp_path / "whole", compiled=False, checkpoint_seconds=0,
               report=lambda record: None)
    with pytest.raises(KeyboardInterrupt):
        loop.train(parts, stop_at(5), plan, loop.plain_loss, tmp_path / "parts", compiled=False, checkpoint_seconds=0,
                   report=lambda r: None)
    fresh = small_models.llama(3, dtype=torch.float32)
    loop.train(fresh, draw, plan, loop.plain_loss, tmp_path / "parts", compiled=False, checkpoint_seconds=0,
               report=lambda record: None)
    for expected, found in zip(whole.parameters(), fresh.parameters()):
        torch.testing.assert_close(found, expected)


def test_a_schedule_ends_with_its_hours(tmp_path, monkeypatch):
    """By a clock on which a step takes 100 s, and from the middle on 200 s."""
    now, rates, reports = [0.0], [], []
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop.optim, "set_rate", lambda optimisers, value: rates.append(value))
    plan = loop.Plan(steps=1000, rows=2, length=8, learning_rate=1e-2, seed=0, hours=5)

    def draw(step):
        now[0] += 100 if step < 90 else 200
        return torch.randint(0, small_models.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(step))

    model = small_models.llama(0, dtype=torch.float32)
    for _ in range(2):  # nothing is left to do for the second
        loop.train(model, draw, plan, loop.plain_loss, tmp_path, compiled=False, report=reports.append)
    assert reports[-1]["step"] == len(rates) and reports[-1]["hours_left"] == 0
    assert now[0] == pytest.approx(5 * 3600, abs=200)
    assert max(rates) == 1 and rates[-1] < 0.1 and rates[80:] == sorted(rates[80:], reverse=True)


def test_a_further_schedule_goes_on_from_the_weights_of_the_first(tmp_path, monkeypatch):
    stream = np.random.default_rng(0).integers(0, data.VOCABULARY, 200).astype(np.uint16)
    streams = data.Streams({kind: stream for kind in mixture.KINDS}, {})
    monkeypatch.setattr(family, "save", lambda model, folder, tokenizer: None)
    monkeypatch.setattr(family.Tokenizer, "from_file", lambda path: None)
    monkeypatch.setattr(data, "prepare", lambda folder: streams)
    monkeypatch.setattr(loop, "train", partial(loop.train, compiled=False))
    plans = [loop.Plan(steps, 2, 8, 1e-2, seed=seed) for steps, seed in ((2, 5), (3, 6))]
    first = family.Member(16, 1, 16, 2, 1, 8, plans[0])
    both = family.make("x", tmp_path / "x", member=replace(first, further=plans[1]))
    alone = family.make("y", tmp_path / "y", member=first)
    loop.train(alone, partial(data.windows, streams.train, mixture.SHARES, 2, 9, 6), plans[1], loop.plain_loss,
               tmp_path / "z")
    for expected, found in zip(alone.parameters(), both.parameters()):
        torch.testing.assert_close(found, expected)


def test_held_out_loss_is_the_mean_over_windows():
    model = small_models.llama(0, dtype=torch.float32)
    stream = np.random.default_rng(0).integers(0, small_models.VOCABULARY, 500).astype(np.uint16)
    rows = [torch.from_numpy(stream[at : at + 17].astype("int64")) for at in (0, 241, 483)]
    expected = np.mean([F.cross_entropy(model(row[None, :-1]).logits[0], row[1:]).item() for row in rows])
    assert loop.held_out_loss(model, stream, 16, 3) == pytest.approx(expected, rel=1e-5)
