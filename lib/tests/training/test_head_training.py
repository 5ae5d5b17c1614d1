"""Training of heads: every kind learns the target's distribution, depth by depth, in less memory."""

import weakref

import numpy as np
import pandas as pd
import pytest
import torch

from lib.drafters import heads
from lib.tests import small_heads, small_models
from lib.training import heads as training
from lib.training import loop
from lib.training.own_text import Windows

TARGET = small_models.llama(3, layers=3, dtype=torch.float32).requires_grad_(False)
SOME = torch.tensor([0, 2, 3, 5, 7, 8, 11, 13, 17, 19, 20])  # of the target's tokens
PLAN = loop.TrainingPlan(steps=40, rows=8, length=24, learning_rate=1e-2, seed=0)
every_kind = pytest.mark.parametrize("kind", heads.KINDS)
all_or_some = pytest.mark.parametrize("drafted", [None, SOME], ids=["all tokens", "some tokens"])


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(loop, "CURVE_STEPS", 20)


def spaced(length=24, count=4, seed=0):
    """Windows of a language with a rule: each token is followed by one of two."""
    rng, stream = np.random.default_rng(seed), [1]
    for choice in rng.integers(0, 2, 999):
        stream.append(1 + (2 * stream[-1] + choice) % (small_models.VOCABULARY - 1))
    starts = np.linspace(0, len(stream) - length - 1, count).astype(int)
    tokens = torch.tensor([stream[at : at + length + 1] for at in starts])
    return Windows(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))


def draw(step):
    return spaced(24, 8, seed=1 + step)


def lesson(drafted=None, **changed):
    return training.lesson(TARGET, draw(0)._replace(**changed), drafted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@all_or_some
@every_kind
def test_a_head_learns_the_targets_distribution(kind, drafted, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "own_dtype", lambda device: dtype)
    head, held_out = training.new(kind, TARGET, drafted, 0), spaced()
    before = training.evaluate({kind: head}, TARGET, held_out)[kind].set_index("depth")
    training.train({kind: head}, TARGET, draw, PLAN, tmp_path, held_out)
    curve = pd.read_csv(tmp_path / kind / "curve.csv")
    depths = training.UNROLLED if kind == "eagle3" else head.depth
    assert curve["step"].unique().tolist() == [20, 40] and len(curve) == 2 * depths
    after = curve[curve["step"] == 40].set_index("depth")
    assert after["nats"].mean() < before["nats"].mean() and after["nats"][1] < before["nats"][1]
    assert after["agreement"][1] >= before["agreement"][1]
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}


@all_or_some
@every_kind
def test_a_head_learns_the_logits_from_which_it_drafts(kind, drafted):
    """At every depth and place."""
    head = filled(training.new(kind, TARGET, drafted, 0))
    drafter, text = small_heads.DRAFTERS[kind](TARGET, head), lesson(drafted)
    depths = training.LOSSES[kind](head, TARGET, text, torch.Generator().manual_seed(2))
    output, hidden = training.output_of(TARGET, drafted), [text.hidden[layer][:1] for layer in range(4)]
    ahead = list(drafter._ahead(hidden, text.tokens[0], 1, len(depths[0])))
    for depth, (state, at) in enumerate(zip(*depths, strict=True)):
        places = torch.arange(text.probs.shape[1])[at]
        assert places.shape == state.shape[1:2] and len(places) > 2
        rows = ahead[depth][places - depth - 1]  # the root is `depth` tokens before the place, the first one token 1
        found = training.logits_of(head, output, text, state, at)[0]
        torch.testing.assert_close(found, rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@all_or_some
def test_a_lesson_has_the_targets_probabilities(drafted, temperature):
    windows = draw(3)
    text = training.lesson(TARGET, windows, drafted, temperature)
    logits = TARGET(windows.tokens[:, :-1]).logits
    probs = (logits / temperature).softmax(-1)
    torch.testing.assert_close(text.probs, probs if drafted is None else probs[..., drafted])
    assert torch.equal(text.favourite, logits.argmax(-1)) and torch.equal(text.tokens, windows.tokens)


def test_the_loss_is_that_of_learned_tokens_at_a_temperature():
    logits, learned = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 9).bool()
    learned[:, 5:8], probs = True, logits.flip(-1).softmax(-1)
    expected = 4 * -(probs * (logits / 2).log_softmax(-1)).sum(-1)[:, 5:8].mean()
    torch.testing.assert_close(training.cross_entropy(logits, probs, learned, 2.0), expected)


def test_a_head_learns_the_same_beside_others_as_alone(tmp_path):
    plan = loop.TrainingPlan(steps=5, rows=8, length=24, learning_rate=1e-2, seed=0, temperature=2.0)
    alone, beside = ({kind: training.new(kind, TARGET, None, 0) for kind in kinds}
                     for kinds in (["dspark"], ["eagle3", "dspark", "medusa"]))
    for trained in (alone, beside):
        training.train(trained, TARGET, draw, plan, tmp_path, spaced())
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


def after_backward(kind, target, tokens, backward):
    """A head after a backward pass, and the most bytes that autograd kept at once for it."""
    head, output = small_heads.head(kind, target), target.get_output_embeddings()
    text = training.lesson(target, Windows(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool)), None)
    (states, places), sizes, peaks = training.LOSSES[kind](head, target, text, torch.Generator().manual_seed(0)), [], []

    def loss_of(state, depth):
        logits = training.logits_of(head, output, text, state, places[depth])
        return training.cross_entropy(logits, text.probs[:, places[depth]], text.learned[:, places[depth]])

    def pack(tensor):
        def saved():
            return tensor

        sizes.append(tensor.nbytes)
        peaks.append(sum(sizes))
        weakref.finalize(saved, sizes.append, -tensor.nbytes)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved()):
        backward(states, loss_of)
    return head, max(peaks)


@every_kind
def test_depths_apart_give_the_same_gradients_from_the_logits_of_one_depth(kind):
    wide = small_models.llama(0, vocabulary=2048, dtype=torch.float32).requires_grad_(False)
    tokens = torch.randint(2048, (2, 33), generator=torch.Generator().manual_seed(0))
    (together, most), (apart, least) = (
        after_backward(kind, wide, tokens, backward) for backward in (backward_together, training.backward_apart))
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
    assert least < 0.6 * most
