"""Training: schedules are functions of the step, stopped runs resume, and the command writes text, trains and publishes."""

import itertools
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

PLAN = loop.TrainingPlan(steps=6, rows=2, length=8, learning_rate=1e-2, seed=0)


def test_the_schedule_decays_only_at_the_end():
    short, long = ([loop.rate_factor(step, steps, 0.3) for step in range(steps)] for steps in (400, 800))
    assert short[:280] == long[:280] and short[60] == 1.0
    assert short[-1] == pytest.approx(1 / 120) and all(a >= b for a, b in itertools.pairwise(short[280:]))


def draw(step):
    return torch.randint(0, small_models.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(step))


def run(model, folder, draw=draw, plan=PLAN):
    """A run that learns the next token; its curve has the weights' sum."""
    def learn(tokens, step):
        loss = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def points():
        return {"a": pd.DataFrame([{"sum": sum(weight.sum().item() for weight in model.parameters())}])}

    loop.run({"a": model}, draw, plan, learn, points, folder)


def test_a_stopped_run_resumes_at_its_checkpoint(tmp_path, monkeypatch):
    """And its curve forgets what it wrote past that."""
    monkeypatch.setattr(loop, "CURVE_STEPS", 1)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)

    def draw_until_five(step):
        if step == 5:
            raise KeyboardInterrupt
        if step == 3:
            monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
        return draw(step)

    whole, parts, fresh = (small_models.llama(seed, dtype=torch.float32) for seed in (0, 0, 3))
    run(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(parts, tmp_path / "parts", draw_until_five)
    run(fresh, tmp_path / "parts")
    for expected, found in zip(whole.parameters(), fresh.parameters()):
        torch.testing.assert_close(found, expected)
    one, other = (pd.read_csv(tmp_path / name / "a" / "curve.csv") for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(one, other)


def test_a_schedule_ends_with_its_hours(tmp_path, monkeypatch):
    """By a clock on which a step takes 100 s, and from the middle on 200 s."""
    now, rates, factor = [0.0], [], loop.rate_factor
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop, "rate_factor", lambda *arguments: rates.append(factor(*arguments)) or rates[-1])

    def drawn_slowly(step):
        now[0] += 100 if step < 90 else 200
        return draw(step)

    model = small_models.llama(0, dtype=torch.float32)
    for _ in range(2):  # nothing remains to be done for the second
        run(model, tmp_path, drawn_slowly, loop.TrainingPlan(1000, 2, 8, 1e-2, seed=0, hours=5))
    rates = rates[::2]  # of two optimisers, one group each
    assert pd.read_csv(tmp_path / "a" / "curve.csv")["step"].iloc[-1] == len(rates)
    assert now[0] == pytest.approx(5 * 3600, abs=200)
    assert max(rates) == 1 and rates[-1] < 0.1 and rates[80:] == sorted(rates[80:], reverse=True)


def test_the_command_writes_text_trains_saves_resumes_and_publishes(tmp_path, monkeypatch, capsys):
    for module, name, value in ((own_text, "TEXT", tmp_path / "text"), (vocabulary, "SHIPPED", tmp_path / "models"),
                                (own_text, "CHUNK", 8), (own_text, "TURN", 20), (own_text, "ANSWER", 20),
                                (own_text, "HELD_OUT_SHARE", 0.25), (vocabulary, "REDUCED", 40),
                                (training, "PLAN", loop.TrainingPlan(9, 2, 16, 5e-3, seed=0))):
        monkeypatch.setattr(module, name, value)
    little = small_models.llama(3, vocabulary=4096, dtype=torch.float32)
    little.save_pretrained(tmp_path / "little")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / "base" / name, tmp_path / "little" / name)
    common = ["--target", str(tmp_path / "little"), "--folder", str(tmp_path)]
    command.main(["own_text", *common, "--tokens", "800"])
    for steps in ("2", "4"):
        command.main(["heads", *common, "--kinds", "medusa,dflash", "--steps", steps])
    assert "step=4 of 4" in capsys.readouterr().out
    command.publish(tmp_path, tmp_path / "shipped")
    for kind in ("medusa", "dflash"):
        folder = tmp_path / "shipped" / "heads" / "little" / kind
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "curve.csv"}
        assert pd.read_csv(folder / "curve.csv")["step"].unique().tolist() == [2, 4]
        assert heads.load(kind, folder, little).depth == (4 if kind == "medusa" else 6)


@pytest.mark.parametrize("words, error", [
    ("nano --target base", "target 'base' has no text of its own"), ("nano --layers 0", "--layers is 0"),
    ("heads --target nosuch", "pair 'nosuch' is unknown"), ("heads --kinds foo", "the head's kind is 'foo'"),
    ("ngrams --target base", "target 'base' has no text of its own"), ("heads --hours nan", "--hours is nan"),
    ("own_text --tokens 0", "--tokens is 0"), ("heads --device nosuch", "device 'nosuch' with dtype")])
def test_a_command_that_cannot_work_ends_with_one_line(words, error, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([*words.split(), "--folder", str(tmp_path)])
    assert ended.value.code == 2 and error in capsys.readouterr().err.splitlines()[-1]
