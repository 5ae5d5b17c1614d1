"""Training of heads: every kind learns what the target says, depth by depth, in less memory; a stopped run goes on."""

import weakref

import numpy as np
import pandas as pd
import pytest
import torch

from lib.drafters import heads
from lib.tests import small_heads, small_models
from lib.training import loop
from lib.training import heads as training
from lib.training.own_text import Windows

TARGET = small_models.llama(3, layers=3, dtype=torch.float32).requires_grad_(False)
KINDS = tuple(heads.KINDS)


KNOWN = torch.tensor([0, 2, 3, 5, 7, 8, 11, 13, 17, 19, 20])  # of the target's tokens


def new_head(kind, seed=0, known=None):
    return training.new(kind, TARGET, known, seed)


def spaced(length=24, count=4, seed=0):
    """Windows of a language with a rule: each token is followed by one of two."""
    rng, stream = np.random.default_rng(seed), [1]
    for choice in rng.integers(0, 2, 999):
        stream.append(1 + (2 * stream[-1] + choice) % (small_models.VOCABULARY - 1))
    starts = np.linspace(0, len(stream) - length - 1, count).astype(int)
    tokens = torch.tensor([stream[at : at + length + 1] for at in starts])
    return Windows(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))


def draw(step, length=24):
    return spaced(length, 8, seed=1 + step)


HELD_OUT = spaced()


def lesson(windows=None, known=None):
    return training.lesson(TARGET, draw(0) if windows is None else windows, known)


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_what_the_target_says(kind, known, tmp_path):
    plan = loop.TrainingPlan(steps=40, rows=8, length=24, learning_rate=1e-2, seed=0)
    head = new_head(kind, known=known)
    before = training.evaluate({kind: head}, TARGET, HELD_OUT)[kind].set_index("depth")
    training.train({kind: head}, TARGET, draw, plan, tmp_path, HELD_OUT, curve_every=20, compiled=False)
    curve = pd.read_csv(tmp_path / kind / "curve.csv")
    depths = training.UNROLLED if kind == "eagle3" else head.depth
    assert curve["step"].unique().tolist() == [20, 40] and len(curve) == 2 * depths
    after = curve[curve["step"] == 40].set_index("depth")
    assert after["nats"].mean() < before["nats"].mean() and after["nats"][1] < before["nats"][1]
    assert after["agreement"][1] >= before["agreement"][1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_in_bfloat16_where_there_are_units_for_it(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "own_dtype", lambda device: torch.bfloat16)
    plan = loop.TrainingPlan(steps=20, rows=8, length=24, learning_rate=1e-2, seed=0)
    head = new_head(kind, known=KNOWN)
    before = training.evaluate({kind: head}, TARGET, HELD_OUT)[kind]
    training.train({kind: head}, TARGET, draw, plan, tmp_path, HELD_OUT, curve_every=20, compiled=False)
    assert pd.read_csv(tmp_path / kind / "curve.csv")["nats"].mean() < before["nats"].mean()
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_to_say_what_it_drafts(kind, known):
    """At every depth and place, the logits of the loss are those from which the drafter drafts there."""
    head = filled(new_head(kind, known=known))
    drafter, said = small_heads.DRAFTERS[kind](TARGET, head), lesson(known=known)
    loss = training.LOSSES[kind](head, TARGET, said, torch.Generator().manual_seed(2))
    output, hidden = training.output_of(TARGET, known), [said.hidden[layer] for layer in range(len(said.hidden) - 1)]
    drafted = list(drafter._ahead([states[:1] for states in hidden], said.tokens[0], 1, len(loss.states)))
    for depth, (state, at) in enumerate(zip(loss.states, loss.places)):
        places = torch.arange(said.probs.shape[1])[at]
        assert places.shape == state.shape[1:2] and len(places) > 2
        rows = drafted[depth][places - depth - 1]  # the root is `depth` tokens before the place, the first one token 1
        torch.testing.assert_close(loss.logits(head, output, said, state, depth)[0], rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all tokens", "some tokens"])
def test_a_lesson_is_what_the_target_says(known):
    windows = draw(3)
    said, logits = lesson(windows, known), TARGET(windows.tokens[:, :-1]).logits
    whole = logits.softmax(-1)
    torch.testing.assert_close(said.probs, whole if known is None else whole[..., known])
    assert torch.equal(said.favourite, logits.argmax(-1)) and torch.equal(said.tokens, windows.tokens)


def test_what_is_not_learned_does_not_count():
    learned = torch.zeros(8, 24, dtype=torch.bool)
    learned[:, 5:9] = True
    windows = Windows(draw(0).tokens, learned)
    head, output = filled(new_head("medusa")), TARGET.get_output_embeddings()
    loss = training.medusa(head, TARGET, lesson(windows), None)
    found = loss.by_depth(head, output, lesson(windows), training.cross_entropy)(loss.states[1], 1)
    p, q = lesson().probs[:, 5:9], output(loss.states[1][:, 3:7]).log_softmax(-1)
    torch.testing.assert_close(found, training.DECAY * -(p * q).sum(-1).mean())


def test_a_head_learns_the_same_beside_others_as_alone(tmp_path):
    plan = loop.TrainingPlan(steps=5, rows=8, length=24, learning_rate=1e-2, seed=0)
    alone, beside = {"dspark": new_head("dspark")}, {kind: new_head(kind) for kind in ("eagle3", "dspark", "medusa")}
    for place, trained in enumerate((alone, beside)):
        training.train(trained, TARGET, draw, plan, tmp_path / str(place), HELD_OUT, compiled=False)
    for one, other in zip(alone["dspark"].parameters(), beside["dspark"].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def filled(head):
    """The head with weights everywhere: some are zero in a new one."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return head


def backward_together(states, loss_of):
    """The plain form: one backward pass of the summed losses of all depths."""
    sum(loss_of(state, depth) for depth, state in enumerate(states)).backward()


def learnt(kind, target, tokens, backward):
    """A new head after a backward pass, and the most bytes that autograd kept at once for it."""
    windows = Windows(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))
    head, said = small_heads.head(kind, target), training.lesson(target, windows, None)
    loss, sizes, peaks = training.LOSSES[kind](head, target, said, torch.Generator().manual_seed(0)), [], []

    def pack(tensor):
        def saved():
            return tensor

        sizes.append(tensor.nbytes)
        peaks.append(sum(sizes))
        weakref.finalize(saved, sizes.append, -tensor.nbytes)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved()):
        backward(loss.states, loss.by_depth(head, target.get_output_embeddings(), said, training.cross_entropy))
    return head, max(peaks)


@pytest.mark.parametrize("kind", ["medusa", "eagle3", "dflash", "dspark"])
def test_depths_apart_give_the_same_gradients_from_the_logits_of_one_depth(kind):
    wide = small_models.llama(0, vocabulary=2048, dtype=torch.float32).requires_grad_(False)
    tokens = torch.randint(2048, (2, 33), generator=torch.Generator().manual_seed(0))
    (together, most), (apart, least) = (
        learnt(kind, wide, tokens, backward) for backward in (backward_together, training.backward_apart))
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
    assert least < 0.6 * most


def test_a_temperature_softens_what_is_learned(tmp_path):
    windows, plan = draw(0), loop.TrainingPlan(steps=1, rows=8, length=24, learning_rate=1e-2, seed=0, temperature=2.0)
    logits = TARGET(windows.tokens[:, :-1]).logits
    assert torch.allclose(training.lesson(TARGET, windows, KNOWN, 2.0).probs,
                          (logits / 2).softmax(-1)[..., KNOWN], atol=1e-6)
    training.train({"medusa": new_head("medusa")}, TARGET, draw, plan, tmp_path, HELD_OUT, compiled=False)
