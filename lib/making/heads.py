"""Heads of a frozen target: their losses, and their training (`python -m lib making heads --target T --kind K`).

A head learns the distribution of its target, not the token of the text, since the target decides acceptance. Each depth
has 0.8 of the weight of the depth before, as for Medusa's heads (Cai et al. 2024, section 2.2.1) and EAGLE-3's steps.
Head and target share the target's output layer.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.drafters import heads
from lib.drafters.heads.eagle import continued, embed, unroll
from lib.drafters.heads.layers import Unrolled
from lib.making import data, family, loop

STEPS = {"medusa": 500, "eagle": 1000, "eagle3": 600, "block": 800}  # Medusa stops improving earlier than the others
PLANS = {kind: loop.Plan(STEPS[kind], 16, 256, 1e-2, seed=11 + place) for place, kind in enumerate(heads.KINDS)}
CURVE_EVERY = 100  # steps between two points of the held-out curve
HELD_OUT_WINDOWS = 4  # of each kind of text
DECAY = 0.8  # weight of a depth relative to the one before
UNROLLED = 4  # depths of EAGLE-3's training-time test
NOISE = 0.1  # half the width of the uniform noise on EAGLE-1's features (Li et al. 2024, section 3.2)
STRIDE = 8  # tokens between the starts of a window's blocks

DepthLoss = Callable[[Tensor, int], Tensor]  # (states [..., H] of a depth, the depth from 0) -> its loss


def cross_entropy(output, state: Tensor, target_state: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per token, of the head's distribution and the target's, both from states [..., H]."""
    with torch.no_grad():
        probs = output(target_state).softmax(-1, dtype=torch.float32)
    return -(probs * output(state).log_softmax(-1, dtype=torch.float32)).sum(-1).mean()


@dataclass(frozen=True)
class HeadLoss:
    """The states of the head and of the target by depth, [B, T', H] each, before their shared output layer.

    The loss of a depth is `classification` times the cross-entropy against the target's distribution, plus
    `regression` times the smooth L1 distance between the states, both means over tokens.
    """

    states: list[Tensor]
    target_states: list[Tensor]
    classification: float = 1.0
    regression: float = 0.0

    def by_depth(self, output, entropy: Callable = cross_entropy) -> DepthLoss:
        """The loss of a depth, for `backward_apart`; output: the output layer; entropy: `cross_entropy` or compiled."""

        def loss_of(state: Tensor, depth: int) -> Tensor:
            loss = self.classification * entropy(output, state, self.target_states[depth])
            if self.regression:
                loss = loss + self.regression * F.smooth_l1_loss(state.float(), self.target_states[depth].float())
            return DECAY**depth * loss

        return loss_of


@torch.no_grad()
def hidden_states(target, tokens: Tensor) -> tuple[Tensor, ...]:
    """The target's hidden states [B, T, H] per layer, of tokens int64[B, T]."""
    return target(tokens, output_hidden_states=True, use_cache=False, logits_to_keep=1).hidden_states


def medusa(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """Medusa: from each hidden state of tokens int64[B, T + 1]; depth d predicts the token d + 2 places later."""
    last = hidden_states(target, tokens[:, :-1])[-1]
    states = head.states(last).unbind(-2)
    lengths = [last.shape[1] - 1 - depth for depth in range(len(states))]
    return HeadLoss([state[:, :length] for state, length in zip(states, lengths)],
                    [last[:, depth + 1 :] for depth in range(len(states))])


def eagle(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """EAGLE-1: one step, from features with uniform noise to the next features (Li et al. 2024, section 3.2)."""
    features = hidden_states(target, tokens[:, :-1])[-1]
    noise = torch.rand(features.shape, generator=generator).to(features)
    entries = (features + NOISE * (2 * noise - 1))[:, :-1]
    place = torch.arange(entries.shape[1], device=tokens.device)[None]
    made = continued(head, entries, embed(head, target, tokens[:, 1:-1]), place, Unrolled())
    return HeadLoss([head.states(made)], [features[:, 1:]], classification=0.1, regression=1.0)


def unrolled(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """EAGLE-3's training-time test: the head continues its own features for a few steps (Li et al. 2025, section 3.2).

    Step d predicts the token d + 2 places after that of the feature.
    """
    hidden = hidden_states(target, tokens[:, :-1])
    length = tokens.shape[1] - 1 - UNROLLED
    made = unroll(head, target, head.read(hidden)[:, :length], tokens[:, 1:], UNROLLED)
    return HeadLoss([head.states(features) for features in made],
                    [hidden[-1][:, step + 1 : step + 1 + length] for step in range(UNROLLED)])


def block(head, target, tokens: Tensor, generator: torch.Generator) -> HeadLoss:
    """Block heads: blocks that start every few tokens of a window, from a position that the generator draws."""
    hidden = hidden_states(target, tokens[:, :-1])
    first = 1 + int(torch.randint(STRIDE, (), generator=generator))
    before = torch.arange(first, hidden[-1].shape[1] - head.depth + 1, STRIDE, device=tokens.device)
    if not len(before):
        raise ValueError(f"windows of {tokens.shape[1] - 1} tokens are too short for a block of {head.depth} that "
                         f"starts within the first {STRIDE}; give a larger `length` in the plan")
    roots = target.get_input_embeddings()(tokens[:, before])
    states = head.states_along(head.read(hidden), roots, before)
    return HeadLoss(list(states.unbind(2)), [hidden[-1][:, before + depth] for depth in range(head.depth)])


LOSSES = {"medusa": medusa, "eagle": eagle, "eagle3": unrolled, "block": block}
HELD_OUT_LOSSES = {**LOSSES, "eagle": unrolled}  # on held-out text: by depth, as the head drafts


def backward_apart(states: Sequence[Tensor], loss_of: DepthLoss) -> Tensor:
    """The backward pass of the summed losses of all depths, one depth after another. Returns the sum.

    The logits of a depth, [rows, length, V], are far larger than the hidden states, and are freed before those of the
    next are made; gradients are summed in the hidden states, and the trunk has one backward pass (Gloeckle et al. 2024,
    "Better & Faster Large Language Models via Multi-token Prediction", figure 2).
    """
    leaves, total = [], states[0].new_zeros((), dtype=torch.float32)
    for depth, state in enumerate(states):
        leaf = state.detach().requires_grad_()
        loss = loss_of(leaf, depth)
        loss.backward()
        total += loss.detach()
        leaves.append(leaf)
    torch.autograd.backward(list(states), [leaf.grad for leaf in leaves])
    return total


def make(target_name: str, kind: str, folder: Path, *, plan: loop.Plan | None = None, device: str = "cpu",
         compiled: bool = True):
    """Trains a head for a target (a member under `folder`, or as `lib.models` names models), and saves it in bfloat16.

    The head and its curve are written to folder/heads/TARGET/KIND. The target wrote half of the windows' text.
    """
    if kind not in PLANS:
        raise ValueError(f"the head's kind is {kind!r}; choose one of {', '.join(PLANS)}")
    plan = plan or PLANS[kind]
    target = family.frozen_target(target_name, folder, device)
    streams = data.prepare(folder)
    torch.manual_seed(plan.seed)  # for the initial weights; each window is a function of seed and step
    head = heads.KINDS[kind](heads.settings(kind, target.config)).to(device)
    into = folder / "heads" / Path(target_name).name / kind
    texts = data.with_own_text(target, target_name, streams, folder, plan)
    draw = partial(data.windows, *texts, plan.rows, plan.length + 1, plan.seed)
    train(head, target, kind, draw, plan, into, streams.held_out, compiled=compiled)
    heads.save(head, into)
    return head


def train(head, target, kind: str, draw, plan: loop.Plan, into: Path, held_out: Mapping[str, np.ndarray], *,
          compiled: bool = True, checkpoint_every: int = 50, curve_every: int = CURVE_EVERY) -> None:
    """Trains a head in place, with checkpoints under `into`/checkpoints and the held-out curve in `into`/curve.csv.

    compiled: whether the softmax over the vocabulary is fused, which halves a step of several depths on a CPU.
    """
    output = target.get_output_embeddings()
    entropy = torch.compile(cross_entropy) if compiled else cross_entropy
    device = next(head.parameters()).device

    def learn(tokens: Tensor, step: int) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            states = LOSSES[kind](head, target, tokens, plan.generator(step))
            loss = states.by_depth(output, entropy)
        return backward_apart(states.states, torch.autocast(device.type, torch.bfloat16)(loss))

    def report(record: dict) -> None:
        print(kind, *(f"{key}={value:.4g}" for key, value in record.items()), flush=True)
        if record["step"] % curve_every == 0 or record["step"] == plan.steps:
            extend_curve(into / "curve.csv", record["step"], evaluate(head, target, kind, held_out, plan.length))

    loop.run(head, draw, plan, learn, into / "checkpoints", checkpoint_every=checkpoint_every, report=report)


@torch.no_grad()
def evaluate(head, target, kind: str, held_out: Mapping[str, np.ndarray], length: int) -> pd.DataFrame:
    """A head on held-out streams: kind of text, depth, nats, agreement (of favourites), tokens."""
    output, rows = target.get_output_embeddings(), []
    for text, stream in held_out.items():
        starts = np.linspace(0, len(stream) - length - 1, HELD_OUT_WINDOWS).astype(int)
        tokens = torch.stack([torch.from_numpy(stream[at : at + length + 1].astype("int64")) for at in starts])
        tokens = tokens.to(target.device)
        by_depth = HELD_OUT_LOSSES[kind](head, target, tokens, torch.Generator().manual_seed(0))
        for depth, (state, true) in enumerate(zip(by_depth.states, by_depth.target_states), start=1):
            agree = output(state).argmax(-1) == output(true).argmax(-1)
            rows.append(dict(kind=text, depth=depth, nats=round(cross_entropy(output, state, true).item(), 4),
                             agreement=round(agree.float().mean().item(), 4), tokens=agree.numel()))
    return pd.DataFrame(rows)


def extend_curve(path: Path, step: int, points: pd.DataFrame) -> None:
    """Adds the points of a step to a curve; points from this step on, of an interrupted run, are replaced."""
    points.insert(0, "step", step)
    if path.exists():
        before = pd.read_csv(path)
        points = pd.concat([before[before["step"] < step], points])
    path.parent.mkdir(parents=True, exist_ok=True)
    points.to_csv(path, index=False)
