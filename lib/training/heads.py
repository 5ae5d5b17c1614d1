"""Heads of a frozen target: their losses, and their training (`python -m lib training heads --target T --kinds K,...`).

A head learns the distribution of its target, not the token of the text, since the target decides acceptance. Each depth
has 0.8 of the weight of the depth before, as for Medusa's heads (Cai et al. 2024, section 2.2.1) and EAGLE-3's steps.
Heads share the target's output layer, and all heads of a training learn from the same forward pass of the target, whose
hidden states are not kept. A head learns the same beside others as alone.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.drafters import heads, vocabulary
from lib.drafters.heads.eagle3 import unroll
from lib.drafters.heads.layers import Head, embed
from lib.forward.load import load_pair
from lib.training import loop, own_text
from lib.training.own_text import Windows

PLAN = loop.TrainingPlan(1000, 8, 512, 3e-3, seed=11, decay=0.9)
CURVE_EVERY = 100  # steps between two points of the held-out curve
HELD_OUT_SHARE, HELD_OUT_ROWS = 0.02, 24  # of the text, and how many of its windows a head is tried on
DECAY = 0.8  # weight of a depth relative to the one before
UNROLLED = 4  # depths of EAGLE-3's training-time test
STRIDE = 8  # tokens between the starts of a window's blocks

DepthLoss = Callable[[Tensor, int], Tensor]  # (states [..., H] of a depth, the depth from 0) -> its loss
Draw = Callable[[int], Windows]  # the windows of a step
Output = Callable[[Tensor], Tensor]  # states [..., H] -> logits [..., K] of the tokens that heads draft


@dataclass(frozen=True)
class Lesson:
    """Outputs of the target for windows of B rows.

    tokens: int64[B, T + 1]. hidden: the hidden states [B, T, H] by layer, -1 for the last. probs: float32[B, T, K], the
    probabilities of the tokens that heads draft as next token after each of T; they sum to less than 1 where heads do
    not draft all tokens. favourite: int64[B, T], the most likely of all tokens. learned: bool[B, T].
    """

    tokens: Tensor
    hidden: Mapping[int, Tensor]
    probs: Tensor
    favourite: Tensor
    learned: Tensor


@torch.no_grad()
def lesson(target, windows: Windows, known: Tensor | None, temperature: float = 1.0) -> Lesson:
    """The target's outputs for windows; known: the tokens int64[K] that heads draft, None for all. temperature: of its
    probabilities.
    """
    read = target.base_model(windows.tokens[:, :-1], output_hidden_states=True, use_cache=False).hidden_states
    output, probs, favourite = target.get_output_embeddings(), [], []
    for states in read[-1]:  # a row at a time: the logits of all tokens are large
        logits = output(states).float() / temperature
        favourite.append(logits.argmax(-1))
        some = logits if known is None else logits[:, known]
        probs.append((some - logits.logsumexp(-1, keepdim=True)).exp())
    hidden = dict(enumerate(read)) | {-1: read[-1]}
    return Lesson(windows.tokens, hidden, torch.stack(probs), torch.stack(favourite), windows.learned)


@dataclass(frozen=True)
class HeadLoss:
    """The states of a head by depth, [B, T', H] each, and the places of the text whose next tokens they speak of.

    The loss of a depth is the cross-entropy against the target's distribution, a mean over the tokens that are learned.
    """

    states: list[Tensor]
    places: list[slice | Tensor]

    def logits(self, head: Head, output: Output, lesson: Lesson, state: Tensor, depth: int) -> Tensor:
        """Of a depth, [B, T', K]: the token at a place is the one before the token of which it speaks."""
        logits, bias = output(state), head.bias(lesson.tokens[:, :-1][:, self.places[depth]])
        return logits if bias is None else logits + bias

    def by_depth(self, head: Head, output: Output, lesson: Lesson, entropy: Callable) -> DepthLoss:
        """The loss of a depth, for `backward_apart`; entropy: `cross_entropy` or compiled."""

        def loss_of(state: Tensor, depth: int) -> Tensor:
            logits, at = self.logits(head, output, lesson, state, depth), self.places[depth]
            return DECAY**depth * entropy(logits, lesson.probs[:, at], lesson.learned[:, at])

        return loss_of


def cross_entropy(logits: Tensor, probs: Tensor, learned: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per learned token, of logits [B, T, K] against probs float32[B, T, K]."""
    return mean(-(probs * logits.log_softmax(-1, dtype=torch.float32)).sum(-1), learned)


def mean(values: Tensor, learned: Tensor) -> Tensor:
    """Of the learned ones."""
    return (values * learned).sum() / learned.sum().clamp_min(1)


def medusa(head, target, said: Lesson, generator: torch.Generator) -> HeadLoss:
    """Medusa: from each hidden state; depth d predicts the token d + 2 places later."""
    states = head.states(said.hidden[-1]).unbind(-2)
    return HeadLoss([state[:, : state.shape[1] - 1 - depth] for depth, state in enumerate(states)],
                    [slice(depth + 1, None) for depth in range(len(states))])


def unrolled(head, target, said: Lesson, generator: torch.Generator) -> HeadLoss:
    """EAGLE-3's training-time test: the head continues its own features for a few steps (Li et al. 2025, section 3.2).

    Step d predicts the token d + 2 places after that of the feature.
    """
    length = said.tokens.shape[1] - 1 - UNROLLED
    steps = unroll(head, target, head.read(said.hidden)[:, :length], said.tokens[:, 1:], UNROLLED)
    return HeadLoss([head.states(features) for features in steps],
                    [slice(step + 1, step + 1 + length) for step in range(UNROLLED)])


def block(head, target, said: Lesson, generator: torch.Generator) -> HeadLoss:
    """Block heads: blocks that start every few tokens of a window, from a position that the generator draws."""
    length = said.tokens.shape[1] - 1
    first = 1 + int(torch.randint(STRIDE, (), generator=generator))
    before = torch.arange(first, length - head.depth + 1, STRIDE, device=said.tokens.device)
    roots = embed(head, target, said.tokens[:, before])
    states = head.states_along(head.read(said.hidden), roots, before)
    return HeadLoss(list(states.unbind(2)), [before + depth for depth in range(head.depth)])


LOSSES = {"medusa": medusa, "eagle3": unrolled, "dflash": block, "dspark": block}


def backward_apart(states: Sequence[Tensor], loss_of: DepthLoss) -> Tensor:
    """The backward pass of the summed losses of all depths, one depth after another. Returns the sum.

    The logits of a depth, [rows, length, K], are far larger than the hidden states, and are freed before those of the
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


def make(target_name: str, kinds: Sequence[str], folder: Path, *, plan: loop.TrainingPlan = PLAN, device: str = "cpu",
         compiled: bool = True) -> dict[str, Head]:
    """Trains heads for a target, as `lib.models` names models, and saves them in bfloat16.

    Each head and its curve are written to folder/heads/TARGET/KIND. The heads learn from text that the target wrote
    (see `own_text`), and draft the most frequent tokens of it. A stopped training of the same kinds resumes.
    ValueError for an unknown kind, and without such text.
    """
    if unknown := [kind for kind in kinds if kind not in LOSSES]:
        raise ValueError(f"the head's kind is {unknown[0]!r}; choose one of {', '.join(LOSSES)}")
    name = Path(target_name).name
    pair = load_pair(target_name, dtype="float32", device=device)
    pair.target.requires_grad_(False)
    own_text.check_there(name)
    known = vocabulary.shipped(name, vocabulary.REDUCED).sort().values
    draw, held_out = dialogues(pair, name, folder, plan)
    trained = {kind: new(kind, pair.target, known, plan.seed).to(device) for kind in kinds}
    train(trained, pair.target, draw, plan, folder / "heads" / name, held_out, compiled=compiled)
    for kind, head in trained.items():
        heads.save(head, folder / "heads" / name / kind)
    return trained


def new(kind: str, target, known: Tensor | None, seed: int) -> Head:
    """A new head of a kind, a function of the seed, that drafts these tokens int64[K] of the target, or all."""
    torch.manual_seed(seed)
    head = heads.KINDS[kind](heads.settings(kind, target.config, None if known is None else len(known)))
    if known is not None:
        head.tokens.copy_(known)
    if kind == "dflash":
        head.mask_embedding = embed(head, target, torch.tensor(head.config.mask_token_id, device=target.device)).detach()
    return head


def dialogues(pair, name: str, folder: Path, plan: loop.TrainingPlan) -> tuple[Draw, dict[str, Windows]]:
    """Windows of the text that a target wrote, all before any comes again; and of the text that is held out."""
    template = own_text.template(pair.tokenizer)
    training, held_out = (own_text.windows(*part.stream(*template), plan.length)
                          for part in own_text.to_learn(name, folder, HELD_OUT_SHARE))
    steps = len(training.tokens) // plan.rows

    def draw(step: int) -> Windows:
        order = torch.randperm(len(training.tokens), generator=plan.generator(step // steps))
        rows = order[step % steps * plan.rows :][: plan.rows]
        return Windows(training.tokens[rows], training.learned[rows])

    return draw, {"dialogues": held_out.first(HELD_OUT_ROWS)}


def train(trained: Mapping[str, Head], target, draw: Draw, plan: loop.TrainingPlan, into: Path,
          held_out: Mapping[str, Windows], *, compiled: bool = True,
          checkpoint_seconds: float = loop.CHECKPOINT_SECONDS, curve_every: int = CURVE_EVERY) -> None:
    """Trains heads, by kind, in place; held-out curves are in `into`/KIND/curve.csv, checkpoints beside them.

    compiled: whether the softmax over the vocabulary is fused, which halves a step of several depths on a CPU.
    """
    heat = plan.temperature
    fused = torch.compile(cross_entropy, dynamic=True) if compiled else cross_entropy

    def entropy(logits: Tensor, probs: Tensor, learned: Tensor) -> Tensor:
        """The loss of softened distributions, whose gradients stay as large (Hinton et al. 2015, section 2)."""
        return fused(logits, probs, learned) if heat == 1 else heat**2 * fused(logits / heat, probs, learned)

    known = next(iter(trained.values())).tokens
    device, output = target.device, output_of(target, known)

    def learn(windows: Windows, step: int) -> Tensor:
        with loop.autocast(device):
            said, total = lesson(target, windows, known, heat), torch.zeros((), device=device)
        for kind, head in trained.items():
            with loop.autocast(device):
                loss = LOSSES[kind](head, target, said, plan.generator(step))
            total += backward_apart(loss.states, loop.autocast(device)(loss.by_depth(head, output, said, entropy)))
        return total

    def report(record: dict) -> None:
        print(*trained, *(f"{key}={value:.4g}" for key, value in record.items()), flush=True)
        if record["step"] % curve_every == 0 or not record["hours_left"]:
            for kind, points in evaluate(trained, target, held_out).items():
                extend_curve(into / kind / "curve.csv", record["step"], points)

    folder = into / "checkpoints" / "+".join(trained)
    loop.run(nn.ModuleDict(trained), draw, plan, learn, folder, checkpoint_seconds=checkpoint_seconds, report=report)


def output_of(target, known: Tensor | None) -> Output:
    """The target's output layer, or its rows for some tokens int64[K]."""
    layer = target.get_output_embeddings()
    if known is None:
        return layer
    rows, bias = layer.weight.detach()[known], None if layer.bias is None else layer.bias.detach()[known]
    return lambda states: F.linear(states, rows, bias)


@torch.no_grad()
def evaluate(trained: Mapping[str, Head], target, held_out: Mapping[str, Windows]) -> dict[str, pd.DataFrame]:
    """Heads on held-out windows: by head the kind of text, depth, nats, agreement (of favourites), tokens."""
    known, rows = next(iter(trained.values())).tokens, {kind: [] for kind in trained}
    output = output_of(target, known)
    for text, windows in held_out.items():
        with loop.autocast(target.device):
            said = lesson(target, windows.to(target.device), known)
        for kind, head in trained.items():
            with loop.autocast(target.device):
                by_depth = LOSSES[kind](head, target, said, torch.Generator().manual_seed(0))
            for depth, (state, at) in enumerate(zip(by_depth.states, by_depth.places)):
                with loop.autocast(target.device):
                    logits = by_depth.logits(head, output, said, state, depth)
                favourite, learned = logits.argmax(-1), said.learned[:, at]
                agree = (favourite if known is None else known[favourite]) == said.favourite[:, at]
                rows[kind].append(dict(
                    kind=text, depth=depth + 1, nats=round(cross_entropy(logits, said.probs[:, at], learned).item(), 4),
                    agreement=round(mean(agree.float(), learned).item(), 4), tokens=int(learned.sum())))
    return {kind: pd.DataFrame(of_kind) for kind, of_kind in rows.items()}


def extend_curve(path: Path, step: int, points: pd.DataFrame) -> None:
    """Adds the points of a step to a curve; points from this step on, of an interrupted run, are replaced."""
    points.insert(0, "step", step)
    with suppress(FileNotFoundError):
        before = pd.read_csv(path)
        points = pd.concat([before[before["step"] < step], points])
    path.parent.mkdir(parents=True, exist_ok=True)
    points.to_csv(path, index=False)
