"""Training: every kind learns the target's distribution, depth by depth, in less memory; stopped runs resume."""

import itertools
import json
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from lib.drafters import heads
from lib.drafters.text_drafters import load_tables
from lib.models import SHIPPED
from lib.tests import small_heads, small_models
from lib.training import command, conditioning, loop, own_text
from lib.training import heads as training

TARGET = small_models.llama(3, layers=3, dtype=torch.float32).requires_grad_(False)
SOME = torch.tensor([0, 2, 3, 5, 7, 8, 11, 13, 17, 19, 20])  # of the target's tokens
PLAN = loop.TrainingPlan(steps=16, rows=8, length=24, learning_rate=1e-2, seed=0, decay=0.3)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 8}
    for module, name, value in ((torch, "compile", lambda function, **options: function),
                                (training, "NANO_SIZES", sizes), (loop, "CURVE_STEPS", 10), (loop, "PASS_TOKENS", 100)):
        monkeypatch.setattr(module, name, value)


def spaced(rows, seed, length=24):
    """Windows of a language with a rule: each token is followed by one of two. A few tokens are not learned."""
    rng, stream = np.random.default_rng(seed), [1]
    for choice in rng.integers(0, 2, rows * length):
        stream.append(1 + (2 * stream[-1] + choice) % (small_models.VOCABULARY - 1))
    tokens = torch.tensor(stream).unfold(0, length + 1, length)
    return tokens, torch.from_numpy(rng.random((rows, length)) < 0.9)


def made(kind):
    """A new model of a kind, and the tokens that it drafts."""
    torch.manual_seed(0)
    return (training.student(TARGET), slice(None)) if kind == "nano" else (training.new(kind, TARGET, SOME), SOME)


@pytest.mark.parametrize("kind, temperature", [*((kind, 1.0) for kind in heads.KINDS), ("nano", 1.0), ("nano", 2.0)])
def test_a_model_learns_the_targets_distribution(kind, temperature, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "WARMUP_STEPS", 1)
    (model, drafted), held_out = made(kind), spaced(4, seed=9)
    before = loop.evaluate(model, TARGET, drafted, held_out)
    plan = replace(PLAN, temperature=temperature)
    loop.train(model, TARGET, drafted, spaced(40, seed=1), held_out, plan, tmp_path / kind)
    curve = pd.read_csv(tmp_path / kind / "curve.csv")
    assert curve["step"].unique().tolist() == [10, 16] and len(curve) == 2 * len(before)
    after = curve[curve["step"] == 16].reset_index()
    assert (after["nats"] < before["nats"]).all() and after["tokens"].tolist() == before["tokens"].tolist()


@pytest.mark.parametrize("size", [None, 11], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("kind", heads.KINDS)
def test_a_head_learns_the_logits_from_which_it_drafts(kind, size):
    """At every depth and position."""
    head, tokens = small_heads.head(kind, TARGET, draft_vocab_size=size), spaced(2, seed=0)[0]
    drafted = slice(None) if size is None else head.tokens
    drafter = small_heads.DRAFTERS[kind](TARGET, head)
    hidden, states, positions = loop.depths_of(head, TARGET, tokens, step=1)
    ahead = list(drafter._ahead([state[:1] for state in hidden], tokens[0], 1, len(states)))
    for depth, state in enumerate(states):
        at = positions + depth
        rows = ahead[depth][positions - 1]  # the root is `depth` tokens before the position, the first one token 1
        found = loop.logits_of(head, TARGET, state, tokens[:, at], drafted)[0]
        assert len(rows) > 2
        torch.testing.assert_close(found, rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", heads.KINDS)
def test_the_loss_of_a_step_is_that_of_each_depth_where_it_predicts(kind, tmp_path, monkeypatch):
    """Each depth has 0.8 of the weight of the one before, and learns the target's distribution one position later."""
    (head, drafted), windows = made(kind), spaced(PLAN.rows, seed=1)
    losses = []

    def keep(states, loss_of):
        losses.extend(loss_of(state.detach(), depth).item() for depth, state in enumerate(states))
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "backward_apart", keep)
    monkeypatch.setattr(loop, "PASS_TOKENS", 1000)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    with pytest.raises(KeyboardInterrupt):
        loop.train(head, TARGET, drafted, windows, windows, PLAN, tmp_path / kind)
    order = torch.randperm(len(windows[0]), generator=torch.Generator().manual_seed(PLAN.seed))
    tokens, learned = (part[order[: PLAN.rows]] for part in windows)
    hidden, states, positions = loop.depths_of(head, TARGET, tokens, step=1)
    teacher = TARGET.get_output_embeddings()(hidden[-1])[..., drafted].softmax(-1)
    for depth, (state, loss) in enumerate(zip(states, losses, strict=True)):
        at = positions + depth
        logits = loop.logits_of(head, TARGET, state, tokens[:, at], drafted)
        values = -(teacher[:, at] * logits.log_softmax(-1)).sum(-1)
        assert loss == pytest.approx((0.8**depth * values[learned[:, at]].mean()).item(), rel=1e-5)


def test_evaluation_is_that_of_the_whole_models():
    (model, drafted), (tokens, learned) = made("nano"), spaced(5, seed=0)
    student, teacher = (one(tokens[:, :-1]).logits[learned] for one in (model, TARGET))
    nats = -(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1).mean().item()
    agreement = (student.argmax(-1) == teacher.argmax(-1)).float().mean().item()
    found = loop.evaluate(model, TARGET, drafted, (tokens, learned)).iloc[0]
    assert found["nats"] == pytest.approx(nats, abs=1e-3) and found["agreement"] == pytest.approx(agreement, abs=1e-3)
    assert found["tokens"] == learned.sum() and found["depth"] == 1


def backward_together(states, loss_of):
    """The plain form: one backward pass of the summed losses of all depths."""
    sum(loss_of(state, depth) for depth, state in enumerate(states)).backward()


def after_backward(kind, target, tokens, backward):
    """The gradients of a head after a backward pass, and the most bytes that autograd kept at once for it."""
    head, sizes, peaks = small_heads.head(kind, target), [], []
    hidden, states, positions = loop.depths_of(head, target, tokens)
    teacher = loop.logits_of(target, target, hidden[-1], tokens, slice(None))

    def loss_of(state, depth):
        at = positions + depth
        logits = loop.logits_of(head, target, state, tokens[:, at], slice(None))
        return loop.cross_entropy(logits, teacher[:, at]).mean()

    def pack(tensor):
        def saved():
            return tensor

        sizes.append(tensor.nbytes)
        peaks.append(sum(sizes))
        weakref.finalize(saved, sizes.append, -tensor.nbytes)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved()):
        backward(states, loss_of)
    return [parameter.grad for parameter in head.parameters()], max(peaks)


@pytest.mark.parametrize("kind", heads.KINDS)
def test_depths_apart_give_the_same_gradients_from_the_logits_of_one_depth(kind):
    wide = small_models.llama(0, vocabulary=2048, dtype=torch.float32).requires_grad_(False)
    tokens = torch.randint(2048, (2, 33), generator=torch.Generator().manual_seed(0))
    (together, most), (apart, least) = (
        after_backward(kind, wide, tokens, backward) for backward in (backward_together, loop.backward_apart))
    torch.testing.assert_close(apart, together)
    assert least < 0.6 * most


def test_the_schedule_decays_only_at_the_end():
    short, long = ([replace(PLAN, steps=steps, learning_rate=1.0).rate(step) for step in range(1, steps + 1)]
                   for steps in (400, 800))
    assert short[:280] == long[:280] and short[59] == 1.0 > short[58]
    assert short[-1] == pytest.approx(1 / 120) and all(a >= b for a, b in itertools.pairwise(short[280:]))


@pytest.mark.parametrize("kind", ["dspark", "nano"])
def test_a_stopped_run_resumes_at_its_checkpoint(kind, tmp_path, monkeypatch):
    """And its curve forgets the points past it."""
    monkeypatch.setattr(loop, "CURVE_STEPS", 1)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    (whole, drafted), (parts, _) = made(kind), made(kind)
    windows, held_out, plan, save = spaced(20, seed=1), spaced(3, seed=2), replace(PLAN, steps=5), loop._save

    def save_until_three(path, step, *state):
        if step == 4:
            raise KeyboardInterrupt
        save(path, step, *state)

    loop.train(whole, TARGET, drafted, windows, held_out, plan, tmp_path / "whole")
    monkeypatch.setattr(loop, "_save", save_until_three)
    with pytest.raises(KeyboardInterrupt):
        loop.train(parts, TARGET, drafted, windows, held_out, plan, tmp_path / "parts")
    monkeypatch.setattr(loop, "_save", save)
    loop.train(parts, TARGET, drafted, windows, held_out, plan, tmp_path / "parts")
    torch.testing.assert_close([*parts.parameters()], [*whole.parameters()])
    one, other = (pd.read_csv(tmp_path / name / "curve.csv") for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(one, other)


@pytest.fixture
def chat(tmp_path, monkeypatch):
    """The folder of a small chat model with the shipped tokenizer; its text goes to a temporary folder."""
    for module, name, value in ((own_text, "TEXT", tmp_path / "text"), (own_text, "CHUNK", 8), (own_text, "TURN", 40),
                                (own_text, "ANSWER", 20), (own_text, "HELD_OUT", 2), (training, "PLAN", PLAN),
                                (training, "NANO_PLAN", PLAN)):
        monkeypatch.setattr(module, name, value)
    small_models.llama(3, vocabulary=4096, dtype=torch.float32).save_pretrained(tmp_path / "little")
    shutil.copy(SHIPPED / "base" / "tokenizer.json", tmp_path / "little")
    config = json.loads((SHIPPED / "base" / "tokenizer_config.json").read_text())
    config["chat_template"] = "user: {{ messages[0]['content'] }}<|end|>model: "
    (tmp_path / "little" / "tokenizer_config.json").write_text(json.dumps(config))
    rows = np.random.default_rng(0).integers(5, 150, (90, 15)).tolist()  # more tokens than the ranks of trees
    own_text.save("little", {tuple(row[:6]): row[6:] for row in rows})
    return tmp_path / "little"


def test_the_command_trains_resumes_and_saves(chat, tmp_path, capsys):
    common = ["--target", str(chat), "--folder", str(tmp_path)]
    for steps in ("2", "4"):
        command.main(["heads", *common, "--kinds", "medusa,dflash,nano", "--steps", steps])
    assert "nano step=4 of 4" in capsys.readouterr().out
    command.main(["ngrams", *common])
    target = AutoModelForCausalLM.from_pretrained(chat).eval()
    for kind in ("medusa", "dflash"):
        folder = tmp_path / "heads" / "little" / kind
        assert pd.read_csv(folder / "curve.csv")["step"].unique().tolist() == [2, 4]
        assert heads.load(kind, folder, target).depth == (4 if kind == "medusa" else 6)
    assert load_tables(tmp_path / "heads" / "little" / "ngrams", target).orders[0]

    nano = AutoModelForCausalLM.from_pretrained(tmp_path / "little" / "nano")
    assert type(nano) is LlamaForCausalLM and nano.dtype == torch.bfloat16
    assert nano.lm_head.weight is nano.model.embed_tokens.weight and nano.config.max_position_embeddings == 256
    plain, assisted = (target.generate(torch.tensor([[3, 4, 9, 2, 5, 6, 7]]), max_new_tokens=12, do_sample=False,
                                       pad_token_id=0, assistant_model=model) for model in (None, nano.float()))
    assert torch.equal(plain, assisted)


def test_heads_that_learn_alike_fill_a_table_and_resume(chat, tmp_path, monkeypatch):
    lines = [json.dumps({"question_id": number, "turns": [f"What is {number}?"]}) for number in range(16)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    asked = dict(prompts=str(tmp_path / "prompts.jsonl"), choose_prompts=8, judge_prompts=8, new_tokens=12, seed=0)
    changed = {"SMOLLM2": str(chat), "FOLDER": tmp_path / "made", "TABLE": tmp_path / "table.csv", "PROMPTS": asked,
               "PLAN": replace(conditioning.PLAN, steps=2, length=24, windows=6)}
    for name, value in changed.items():
        monkeypatch.setattr(conditioning, name, value)
    monkeypatch.setattr("sys.argv", ["conditioning", "--costs"])
    conditioning.main()
    table = pd.read_csv(tmp_path / "table.csv")
    heads_and_sizes = {*itertools.product(conditioning.HEADS, ("chain", "tree"), conditioning.ROWS)}
    for quantity in ("accepted", "drafting"):
        rows = table[table["quantity"] == quantity]
        assert {*zip(rows["head"], rows["form"], rows["rows"])} == heads_and_sizes and (rows["value"] >= 0).all()
    assert json.loads((tmp_path / "table.json").read_text())["plan"]["steps"] == 2

    monkeypatch.setattr(loop, "evaluate", None)  # which each step that is not resumed would call
    monkeypatch.setattr("sys.argv", ["conditioning"])
    conditioning.main()
    again = pd.read_csv(tmp_path / "table.csv")
    pd.testing.assert_frame_equal(again, table[table["quantity"] != "drafting"])


@pytest.mark.parametrize("words, error", [
    ("heads --target base", "target 'base' has no text of its own"), ("heads --steps 0", "steps are 0"),
    ("ngrams --target base", "target 'base' has no text of its own"), ("heads --target no", "pair 'no' is unknown"),
    ("heads --temperature nan", "temperature is nan"), ("heads --kinds medusa,foo", "there is no kind 'foo'"),
    ("own_text --target base", "target 'base' has no chat template"), ("heads --device nosuch", "device 'nosuch' with"),
    ("heads --kinds nano --folder long", "less than 400 windows of 24; let it write more")])
def test_a_command_that_cannot_work_ends_with_one_line(words, error, chat, tmp_path, monkeypatch, capsys):
    if "long" in words:
        monkeypatch.setattr(own_text, "HELD_OUT", 200)
    with pytest.raises(SystemExit) as ended:
        command.main([words.split()[0], "--target", str(chat), "--folder", str(tmp_path), *words.split()[1:]])
    assert ended.value.code == 2 and error in capsys.readouterr().err.splitlines()[-1]
