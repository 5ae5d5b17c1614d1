"""Training of heads: every kind learns what the target says, depth by depth, in less memory; a stopped run goes on."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from lib.drafters import heads
from lib.lab import tables
from lib.making import command, data, loop
from lib.making import heads as training
from lib.making.corpus import mixture
from lib.models import SHIPPED, PairError
from lib.studies.drafters import findings
from lib.tests import small_heads, small_models
from lib.tests.making.counted_bytes import CountedBytes

TARGET = small_models.llama(3, layers=3, dtype=torch.float32).requires_grad_(False)
KINDS = tuple(heads.KINDS)


def new_head(kind, seed=0):
    torch.manual_seed(seed)
    return heads.KINDS[kind](heads.settings(kind, TARGET.config))


def streams():
    """A language with a rule: each token is followed by one of two."""
    rng, made = np.random.default_rng(0), {}
    for kind in ("a", "b"):
        stream = [1]
        for choice in rng.integers(0, 2, 999):
            stream.append(1 + (2 * stream[-1] + choice) % (small_models.VOCABULARY - 1))
        made[kind] = np.array(stream, dtype=np.uint16)
    return made


def draw(step, length=24):
    return data.windows(streams(), {"a": 0.5, "b": 0.5}, 8, length + 1, seed=1, step=step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_what_the_target_says(kind, tmp_path):
    plan = loop.Plan(steps=40, rows=8, length=24, learning_rate=1e-2, seed=0)
    head, held_out = small_heads.head(kind, TARGET), {"a": streams()["a"]}
    training.train(head, TARGET, kind, draw, plan, tmp_path, held_out, curve_every=20, compiled=False)
    curve = pd.read_csv(tmp_path / "curve.csv")
    depths = head.depth if kind in ("medusa", "block") else training.UNROLLED
    assert curve["step"].unique().tolist() == [20, 40] and len(curve) == 2 * depths
    before = training.evaluate(small_heads.head(kind, TARGET), TARGET, kind, held_out, 24).set_index("depth")
    after = curve[curve["step"] == 40].set_index("depth")
    assert after["nats"].mean() < before["nats"].mean() and after["nats"][1] < before["nats"][1]
    assert after["agreement"][1] >= before["agreement"][1]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_compare_a_head_with_the_target_at_the_same_token(kind):
    """A head that said what the target says would have its states: the targets' are those of the tokens spoken of."""
    tokens = draw(0)
    last = training.hidden_states(TARGET, tokens[:, :-1])[-1]
    head = small_heads.head(kind, TARGET)
    loss = training.HELD_OUT_LOSSES[kind](head, TARGET, tokens, torch.Generator().manual_seed(2))
    for depth, (state, wanted) in enumerate(zip(loss.states, loss.target_states)):
        assert state.shape == wanted.shape
        if kind == "block":
            first = 1 + int(torch.randint(training.STRIDE, (), generator=torch.Generator().manual_seed(2)))
            torch.testing.assert_close(wanted[:, 0], last[:, first + depth])
        else:
            torch.testing.assert_close(wanted[:, 0], last[:, depth + 1])


def test_eagle_one_regresses_features_and_counts_classification_a_tenth():
    loss = training.eagle(small_heads.head("eagle", TARGET), TARGET, draw(0), torch.Generator().manual_seed(0))
    (state,), (wanted,) = loss.states, loss.target_states
    output = TARGET.get_output_embeddings()
    difference = (state - wanted).abs()
    smooth = torch.where(difference < 1, difference**2 / 2, difference - 0.5).mean()
    p, q = output(wanted).softmax(-1), output(state).softmax(-1)
    expected = smooth + 0.1 * -(p * q.log()).sum(-1).mean()
    assert loss.by_depth(output)(state, 0).item() == pytest.approx(expected.item(), rel=1e-4)


def backward_together(states, loss_of):
    """The plain form: one backward pass of the summed losses of all depths."""
    sum(loss_of(state, depth) for depth, state in enumerate(states)).backward()


def learnt(kind, target, tokens, backward):
    """A new head after a backward pass, the number of its depths, and the most bytes that were in use at once."""
    head = small_heads.head(kind, target)
    loss = training.LOSSES[kind](head, target, tokens, torch.Generator().manual_seed(0))
    with CountedBytes() as counted:
        backward(loss.states, loss.by_depth(target.get_output_embeddings()))
    return head, len(loss.states), counted.peak


@pytest.mark.parametrize("kind", ["medusa", "eagle3", "block"])
def test_depths_apart_give_the_same_gradients_from_the_logits_of_one_depth(kind):
    wide = small_models.llama(0, vocabulary=2048, dtype=torch.float32).requires_grad_(False)
    tokens = torch.randint(2048, (2, 33), generator=torch.Generator().manual_seed(0))
    (together, depths, most), (apart, _, least) = (
        learnt(kind, wide, tokens, backward) for backward in (backward_together, training.backward_apart))
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
    rows = 2 * (4 if kind == "block" else 28)  # at least so many have logits
    assert depths > 1 and least < 0.6 * most and most - least > 0.7 * (depths - 1) * rows * 2048 * 4


def test_counted_bytes_are_those_alive_at_once():
    with CountedBytes() as counted:
        kept = torch.ones(1000)
        for _ in range(3):
            made = kept * 2
            view = made[:10]
            del made
            assert counted.live == 8000, "a view keeps the whole"
            del view
        assert (counted.live, counted.peak) == (4000, 8000)


def test_curves_are_drawn_and_fit_their_table():
    points = training.evaluate(small_heads.head("medusa", TARGET), TARGET, "medusa", streams(), 24).assign(step=20)
    curve = pd.concat([points, points.assign(step=40)])
    both = pd.concat([curve.assign(target="t", head=head) for head in ("medusa", "block")])
    figure = findings.heads_learning(both).figure
    titles = [axis.get_title() or axis.get_title("left") for axis in figure.axes]  # the theme puts them at the left
    assert titles == ["block", "medusa"]
    assert all(len(axis.lines) == 4 for axis in figure.axes)
    tables.write("", "head_curves", curve.assign(target="t", head="medusa"), "mark")


def test_a_stopped_training_goes_on_where_it_was(tmp_path):
    plan = loop.Plan(steps=6, rows=8, length=24, learning_rate=1e-2, seed=0)

    def until(stop):
        def drawing(step):
            if step == stop:
                raise KeyboardInterrupt
            return draw(step)
        return drawing

    whole, parts = new_head("eagle"), new_head("eagle")
    training.train(whole, TARGET, "eagle", draw, plan, tmp_path / "whole", {}, checkpoint_every=2, compiled=False)
    with pytest.raises(KeyboardInterrupt):
        training.train(parts, TARGET, "eagle", until(5), plan, tmp_path / "parts", {}, checkpoint_every=2,
                       compiled=False)
    fresh = new_head("eagle", seed=5)
    training.train(fresh, TARGET, "eagle", draw, plan, tmp_path / "parts", {}, checkpoint_every=2, compiled=False)
    for expected, found in zip(whole.parameters(), fresh.parameters()):
        torch.testing.assert_close(found, expected)


def test_a_curve_forgets_what_a_stopped_run_had_said_beyond(tmp_path):
    for step, nats in ((100, 3.0), (200, 2.0), (300, 1.5), (200, 2.1)):
        training.extend_curve(tmp_path / "curve.csv", step, pd.DataFrame([dict(kind="a", nats=nats)]))
    curve = pd.read_csv(tmp_path / "curve.csv")
    assert list(zip(curve["step"], curve["nats"])) == [(100, 3.0), (200, 2.1)]


def test_the_command_trains_saves_resumes_and_publishes(tmp_path, monkeypatch, capsys):
    for split in ("train", "held_out"):
        for kind in mixture.KINDS:
            np.save(tmp_path / f"{split}-{kind}.npy", streams()["a"])
    shutil.copy(SHIPPED / "base" / "tokenizer.json", tmp_path / "tokenizer.json")
    TARGET.save_pretrained(tmp_path / "little")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / "base" / name, tmp_path / "little" / name)
    monkeypatch.setitem(training.PLANS, "medusa", loop.Plan(9, 2, 16, 5e-3, seed=0))
    monkeypatch.setattr("lib.making.data.PROMPT_TOKENS", 8)
    monkeypatch.setattr("lib.making.data.NEW_TOKENS", 12)
    for steps in ("2", "4"):
        words = ["heads", "--target", "little", "--kind", "medusa", "--folder", str(tmp_path), "--steps", steps]
        command.main(words)
    assert "step=4" in capsys.readouterr().out
    folder = tmp_path / "heads" / "little" / "medusa"
    assert pd.read_csv(folder / "curve.csv")["step"].unique().tolist() == [2, 4]
    assert heads.load("medusa", folder, TARGET).depth == 4
    nothing = pd.DataFrame(columns=["kind", "member", "nats_a_token"])
    monkeypatch.setattr(command.family, "losses", lambda names, folder: nothing)
    command.publish(tmp_path, tmp_path / "shipped")
    kept = tmp_path / "shipped" / "heads" / "little" / "medusa"
    assert {path.name for path in kept.iterdir()} == {"config.json", "model.safetensors", "curve.csv"}
    with pytest.raises(ValueError, match="kind is 'hydra'; choose one of medusa"):
        training.make("little", "hydra", tmp_path)


def test_a_target_that_is_not_there_is_told_before_the_corpus_is_read(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PairError, match="empty is of no type that this version of transformers supports"):
        training.make(str(tmp_path / "empty"), "medusa", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
