"""Training: schedules are functions of the step, stopped runs go on, and the command writes text, trains and publishes."""

import shutil

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lib.drafters import heads, vocabulary
from lib.models import SHIPPED
from lib.tests import small_models
from lib.training import command, loop, own_text
from lib.training import heads as training


def test_the_schedule_decays_only_at_the_end():
    short, long = ([loop.rate_factor(step, steps, 0.3) for step in range(steps)] for steps in (400, 800))
    assert short[:280] == long[:280] and short[60] == 1.0
    assert short[-1] == pytest.approx(1 / 120) and all(a >= b for a, b in zip(short[280:], short[281:]))


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

    def draw_until_five(step):
        if step == 5:
            raise KeyboardInterrupt
        return draw(step)

    def run(model, draw, folder):
        loop.run(model, draw, plan, learning(model), tmp_path / folder, checkpoint_seconds=0, report=lambda record: None)

    whole, parts, fresh = (small_models.llama(seed, dtype=torch.float32) for seed in (0, 0, 3))
    run(whole, draw, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(parts, draw_until_five, "parts")
    run(fresh, draw, "parts")
    for expected, found in zip(whole.parameters(), fresh.parameters()):
        torch.testing.assert_close(found, expected)


def test_a_schedule_ends_with_its_hours(tmp_path, monkeypatch):
    """By a clock on which a step takes 100 s, and from the middle on 200 s."""
    now, rates, reports = [0.0], [], []
    factor = loop.rate_factor
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop, "rate_factor", lambda *arguments: rates.append(factor(*arguments)) or rates[-1])
    plan = loop.TrainingPlan(steps=1000, rows=2, length=8, learning_rate=1e-2, seed=0, hours=5)

    def drawn_slowly(step):
        now[0] += 100 if step < 90 else 200
        return draw(step)

    model = small_models.llama(0, dtype=torch.float32)
    for _ in range(2):  # nothing remains to be done for the second
        loop.run(model, drawn_slowly, plan, learning(model), tmp_path, report=reports.append)
    rates = rates[::2]  # of two optimisers, one group each
    assert reports[-1]["step"] == len(rates) and reports[-1]["hours_left"] == 0
    assert now[0] == pytest.approx(5 * 3600, abs=200)
    assert max(rates) == 1 and rates[-1] < 0.1 and rates[80:] == sorted(rates[80:], reverse=True)


def test_a_curve_forgets_what_a_stopped_run_wrote_past_its_checkpoint(tmp_path):
    for step, nats in ((100, 3.0), (200, 2.0), (300, 1.5), (200, 2.1)):
        loop.extend_curve(tmp_path / "curve.csv", step, pd.DataFrame([dict(kind="a", nats=nats)]))
    curve = pd.read_csv(tmp_path / "curve.csv")
    assert list(zip(curve["step"], curve["nats"])) == [(100, 3.0), (200, 2.1)]


def test_the_command_writes_text_trains_saves_resumes_and_publishes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_text, "TEXT", tmp_path / "text")
    monkeypatch.setattr(vocabulary, "SHIPPED", tmp_path / "models")
    for name, value in (("CHUNK", 8), ("TURN", 20), ("ANSWER", 20), ("HELD_OUT_SHARE", 0.25)):
        monkeypatch.setattr(own_text, name, value)
    monkeypatch.setattr(vocabulary, "REDUCED", 40)
    monkeypatch.setattr(training, "PLAN", loop.TrainingPlan(9, 2, 16, 5e-3, seed=0))
    little = small_models.llama(3, vocabulary=4096, dtype=torch.float32)
    little.save_pretrained(tmp_path / "little")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / "base" / name, tmp_path / "little" / name)
    common = ["--target", str(tmp_path / "little"), "--folder", str(tmp_path)]
    command.main(["own_text", *common, "--tokens", "800"])
    for steps in ("2", "4"):
        command.main(["heads", *common, "--kinds", "medusa,dflash", "--steps", steps])
    assert "step=4" in capsys.readouterr().out
    command.publish(tmp_path, tmp_path / "shipped")
    for kind in ("medusa", "dflash"):
        folder = tmp_path / "shipped" / "heads" / "little" / kind
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "curve.csv"}
        assert pd.read_csv(folder / "curve.csv")["step"].unique().tolist() == [2, 4]
        assert heads.load(kind, folder, little).depth == (4 if kind == "medusa" else 6)


@pytest.mark.parametrize("words, error", [
    ("nano --target base", "target 'base' has no text of its own"), ("nano --layers 0", "--layers is 0"),
    ("heads --target nosuch", "pair 'nosuch' is unknown"), ("heads --kinds foo", "the head's kind is 'foo'"),
    ("ngrams --target base", "target 'base' has no text of its own"),
    ("own_text --tokens 0", "--tokens is 0"), ("heads --device nosuch", "device 'nosuch' with dtype")])
def test_a_command_that_cannot_work_ends_with_one_line(words, error, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([*words.split(), "--folder", str(tmp_path)])
    assert ended.value.code == 2 and error in capsys.readouterr().err.splitlines()[-1]
