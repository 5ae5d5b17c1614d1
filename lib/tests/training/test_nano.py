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
from lib.training import command, nano, own_text
from lib.training.loop import TrainingPlan
from lib.training.own_text import Windows

TARGET = small_models.llama(3, dtype=torch.float32, gain=2.0).requires_grad_(False)
SIZES = dict(hidden_size=16, num_hidden_layers=1, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
             head_dim=8)
PLAN = TrainingPlan(steps=80, rows=8, length=24, learning_rate=1e-2, seed=0)
KNOWN = torch.arange(2, 14)


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    monkeypatch.setattr(nano, "OTHERS", 4)


def dialogues(count=120):
    """Random turns of the target's vocabulary; a student learns what the target says of them."""
    rng = np.random.default_rng(0)
    return own_text.packed([(rng.integers(3, 24, 6).tolist(), rng.integers(3, 24, 9).tolist(), 0.7)
                            for _ in range(count)])


def text(folder, rows=slice(None)):
    tokens, learned = own_text.windows(*dialogues().stream([3, 4], [5, 6, 7]), PLAN.length)
    return nano.read(TARGET, Windows(tokens[rows], learned[rows]), folder)


def test_rows_are_the_stream_and_the_template_is_not_learned():
    stream, writers = dialogues(9).stream([3, 4], [5, 6, 7])
    tokens, learned = own_text.windows(stream, writers, 24)
    assert len(tokens) == (len(stream) - 1) // 24 and tokens.shape[1] == 25 and learned.shape[1] == 24
    assert torch.equal(tokens[:, :-1].flatten(), torch.from_numpy(stream[: 24 * len(tokens)]))
    assert torch.equal(tokens[:-1, -1], tokens[1:, 0]), "the last token of a row is predicted and begins the next"
    assert learned.flatten().tolist() == (writers[1 : 24 * len(tokens) + 1] > 0).tolist()
    assert learned.float().mean() == pytest.approx(15 / 20, abs=0.02)


def test_the_target_reads_a_text_once(tmp_path, monkeypatch):
    forward, calls = TARGET.model.forward, []

    def stopping(*given, **settings):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return forward(*given, **settings)

    monkeypatch.setattr(TARGET.model, "forward", stopping)
    with pytest.raises(KeyboardInterrupt):
        text(tmp_path, slice(9))
    read = text(tmp_path, slice(9))
    assert len(calls) == 6 + 4
    states = torch.from_numpy(read.states.copy()).view(torch.bfloat16).float()
    torch.testing.assert_close(states, forward(read.tokens[:, :-1]).last_hidden_state, atol=0.02, rtol=0.01)


def test_embeddings_begin_as_principal_components():
    weight = torch.randn(60, 12, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.arange(1.0, 13))
    found = nano.principal_components(weight, 4)
    left, sizes, _ = torch.linalg.svd(weight - weight.mean(0), full_matrices=False)
    expected = left[:, :4] * sizes[:4]
    torch.testing.assert_close(found @ found.T, expected @ expected.T / expected.square().mean(), rtol=1e-3, atol=1e-3)
    model = nano.student(TARGET, SIZES)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.config.max_position_embeddings == 256
    assert model(KNOWN[None]).logits.std().item() == pytest.approx(1, abs=0.5)


def test_a_student_learns_the_whole_distribution_from_part_of_it(tmp_path):
    training, held_out = text(tmp_path, slice(80)), text(tmp_path, slice(80, None))
    torch.manual_seed(0)
    model = nano.student(TARGET, SIZES)
    before = nano.evaluate(model, TARGET, held_out, KNOWN)
    nano.train(model, TARGET, training, held_out, KNOWN, PLAN, tmp_path, compiled=False, curve_every=40)
    curve = pd.read_csv(tmp_path / "curve.csv").set_index("step")
    assert curve.index.tolist() == [40, 80] and curve["trained"].tolist() == [40 * 8 * 24, 80 * 8 * 24]
    after = curve.loc[80]
    assert after["nats"] < before["nats"] / 3 and after["tokens"] == before["tokens"]
    assert after["whole"] > before["whole"] + 0.2 and after["agreement"] > before["agreement"] + 0.2


def test_evaluation_is_what_the_whole_models_say(tmp_path):
    held_out, model = text(tmp_path, slice(3)), nano.student(TARGET, SIZES)
    found = nano.evaluate(model, TARGET, held_out, KNOWN)
    own, true = (each(held_out.tokens[:, :-1]).logits[held_out.learned] for each in (model, TARGET))
    p, q = true.softmax(-1), own.softmax(-1)
    assert found["nats"] == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), abs=0.05)
    assert found["whole"] == pytest.approx((own.argmax(-1) == true.argmax(-1)).float().mean().item(), abs=0.08)
    best = KNOWN[own[:, KNOWN].argmax(-1)]
    assert found["agreement"] == pytest.approx((best == true.argmax(-1)).float().mean().item(), abs=0.08)
    assert found["tokens"] == int(held_out.learned.sum())


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """A target with dialogues and frequent tokens, as committed files."""
    monkeypatch.setattr(own_text, "TEXT", tmp_path / "text")
    monkeypatch.setattr(vocabulary, "SHIPPED", tmp_path / "models")
    own_text.publish(dialogues(), "t")
    pair = SimpleNamespace(target=TARGET, tokenizer=Chat(), target_name="t")
    monkeypatch.setattr(nano, "load_pair", lambda name, **settings: pair)
    return tmp_path


def test_what_is_saved_is_an_ordinary_model_that_assists_its_target(committed):
    made = nano.make("t", committed / "work", plan=replace(PLAN, steps=3), sizes=SIZES, known=12, compiled=False)
    command.publish(committed / "work", committed / "models")
    folder = committed / "models" / "t" / "nano"
    assert {path.name for path in folder.iterdir()} == {"config.json", "generation_config.json", "model.safetensors",
                                                        "curve.csv"}
    saved = AutoModelForCausalLM.from_pretrained(folder)
    assert type(saved) is LlamaForCausalLM and saved.dtype == torch.bfloat16
    for weight, own in zip(saved.parameters(), made.parameters(), strict=True):
        assert torch.equal(weight, own.bfloat16())
    prompt, alone = torch.tensor([[3, 4, 9, 2, 5, 6, 7]]), dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
    assisted = TARGET.generate(prompt, assistant_model=saved.float(), **alone)
    assert torch.equal(assisted, TARGET.generate(prompt, **alone))


def test_a_target_without_frequent_tokens_or_text_is_told(committed):
    with pytest.raises(ValueError, match="target 'other' has no text of its own in data/text; take 'smollm2"):
        nano.make("other", committed)
    own_text.path_of("t").rename(own_text.path_of("other"))
    with pytest.raises(ValueError, match="no list of frequent tokens ships for target 'other'"):
        nano.make("other", committed)


def test_the_target_reads_what_the_steps_need_and_says_so(committed, monkeypatch, capsys):
    """The rows that the steps draw, and the held-out ones; what is trained is what it is with all rows read before."""
    monkeypatch.setattr(nano, "HELD_OUT_SHARE", 0.1)
    plan, read, forward = replace(PLAN, steps=2, rows=4), [], TARGET.model.forward
    monkeypatch.setattr(TARGET.model, "forward", lambda tokens, **more: read.append(tokens) or forward(tokens, **more))
    settings = dict(plan=plan, sizes=SIZES, known=12, compiled=False)
    first = nano.make("t", committed / "work", **settings)
    training, held_out = (own_text.windows(*part.stream(*own_text.template(Chat())), plan.length)
                          for part in own_text.to_learn("t", committed / "work", 0.1))
    drawn = {row for step in range(2) for row in nano.drawn_rows(plan, step, len(training.tokens)).tolist()}
    assert 4 < len(drawn) <= 8 < len(training.tokens)
    rows = [*(training.tokens[row] for row in sorted(drawn)), *held_out.tokens]
    assert [each[0].tolist() for each in read] == [row[:-1].tolist() for row in rows]
    assert f"{len(drawn)}/{len(drawn)}" in capsys.readouterr().out
    everything = nano.read(TARGET, training, committed / "other" / "states" / "t")
    monkeypatch.setattr(nano, "read", lambda target, rows, folder, places=None, read=nano.read:
                        everything if len(rows.tokens) == len(training.tokens) else read(target, rows, folder))
    for own, other in zip(first.parameters(), nano.make("t", committed / "other", **settings).parameters()):
        assert torch.equal(own, other)


@pytest.mark.parametrize("words, error", [
    ("nano --target base", "target 'base' has no text of its own"), ("nano --layers 0", "--layers is 0"),
    ("heads --target nosuch", "pair 'nosuch' is unknown"), ("heads --kinds foo", "the head's kind is 'foo'"),
    ("ngrams --target base", "target 'base' has no text of its own"),
    ("heads --target base", "target 'base' has no text of its own"),
    ("own_text --tokens 0", "--tokens is 0"), ("heads --device nosuch", "device 'nosuch' with dtype")])
def test_a_command_that_cannot_work_ends_with_one_line(words, error, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([*words.split(), "--folder", str(tmp_path)])
    assert ended.value.code == 2 and error in capsys.readouterr().err.splitlines()[-1]


def test_the_shipped_sizes_are_at_most_sixteen_mebibytes():
    with torch.device("meta"):
        config = small_models.llama(0).config
        config.update(dict(nano.SIZES, vocab_size=49152, tie_word_embeddings=True))
        weights = sum(weight.numel() for weight in LlamaForCausalLM(config).parameters())
    assert 15 < weights * 2 / 2**20 < 15.99, "a kilobyte is the file's own"
