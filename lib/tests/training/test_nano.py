"""A student learns its target's distribution on the target's dialogues, over the whole vocabulary, and stands alone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from lib.drafters import vocabulary
from lib.tests import small_models
from lib.tests.training.test_own_text import Chat
from lib.training import loop, nano, own_text
from lib.training.own_text import Dialogue

TARGET = small_models.llama(3, dtype=torch.float32, gain=2.0).requires_grad_(False)
PLAN = loop.TrainingPlan(steps=80, rows=8, length=24, learning_rate=1e-2, seed=0)
FREQUENT = torch.arange(2, 14)
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 8}


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """A target with random dialogues and frequent tokens as committed files; its windows, and those held out."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    for module, name, value in ((nano, "OTHERS", 4), (nano, "FREQUENT", 12), (nano, "SIZES", SIZES),
                                (loop, "CURVE_STEPS", 40), (own_text, "HELD_OUT_SHARE", 0.2),
                                (own_text, "TEXT", tmp_path / "text"), (vocabulary, "SHIPPED", tmp_path)):
        monkeypatch.setattr(module, name, value)
    rng = np.random.default_rng(0)
    rows = [Dialogue(rng.integers(3, 24, 6).tolist(), rng.integers(3, 24, 9).tolist(), 0.7) for _ in range(120)]
    own_text.save(own_text.path_of("t"), rows)
    (tmp_path / "t").mkdir()
    np.save(tmp_path / "t" / vocabulary.FILE, vocabulary.most_frequent([row.answer for row in rows]).numpy())
    pair = SimpleNamespace(target=TARGET, tokenizer=Chat(), target_name="t")
    monkeypatch.setattr(nano, "load_pair", lambda name, **settings: pair)
    return own_text.lessons(pair, "t", tmp_path, PLAN)


def test_windows_come_once_before_any_comes_again_and_none_is_held_out(lessons):
    draw, held_out = lessons
    first = torch.cat([draw(step).tokens for step in range(9)])
    rows = {tuple(row) for row in first.tolist()}
    assert len(rows) == len(first) == 72 and not draw(0).learned.all() and draw(0).learned.any()
    assert not rows & {tuple(row) for row in held_out.tokens.tolist()} and len(held_out.tokens) > 9


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_student_learns_the_whole_distribution_from_part_of_it(temperature, lessons, tmp_path):
    draw, held_out = lessons
    torch.manual_seed(0)
    model = nano.student(TARGET, SIZES)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.config.max_position_embeddings == 256
    assert model(FREQUENT[None]).logits.std().item() == pytest.approx(1, abs=0.5)
    before = nano.evaluate(model, TARGET, held_out)
    plan = replace(PLAN, temperature=temperature)
    nano.train({"nano": model}, TARGET, draw, held_out, FREQUENT, plan, tmp_path)
    curve = pd.read_csv(tmp_path / "nano" / "curve.csv").set_index("step")
    assert curve.index.tolist() == [40, 80]
    after = curve.loc[80]
    assert after["nats"] < before["nats"] / 3 and after["tokens"] == before["tokens"]
    assert after["agreement"] > before["agreement"] + 0.2


def test_evaluation_is_that_of_the_whole_models(lessons):
    model, held_out = nano.student(TARGET, SIZES), lessons[1]
    found = nano.evaluate(model, TARGET, held_out)
    student, teacher = (one(held_out.tokens[:, :-1]).logits[held_out.learned] for one in (model, TARGET))
    p, q = teacher.softmax(-1), student.softmax(-1)
    agreement = (student.argmax(-1) == teacher.argmax(-1)).float().mean().item()
    assert found["nats"] == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), abs=0.05)
    assert found["agreement"] == pytest.approx(agreement, abs=0.08) and found["tokens"] == int(held_out.learned.sum())


def test_a_saved_student_is_an_ordinary_model_that_assists_its_target(lessons, tmp_path):
    made = nano.make("t", tmp_path, replace(PLAN, steps=3), layers=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "t" / "nano")
    assert type(model) is LlamaForCausalLM and model.dtype == torch.bfloat16
    for weight, trained in zip(model.parameters(), made.parameters(), strict=True):
        assert torch.equal(weight, trained)
    prompt, options = torch.tensor([[3, 4, 9, 2, 5, 6, 7]]), {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assisted = TARGET.generate(prompt, assistant_model=model.float(), **options)
    assert torch.equal(assisted, TARGET.generate(prompt, **options))
    own_text.path_of("t").rename(own_text.path_of("other"))
    with pytest.raises(ValueError, match="0 frequent tokens ship for target 'other'"):
        nano.make("other", tmp_path)
