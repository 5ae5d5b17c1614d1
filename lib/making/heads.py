"""Training of heads on a frozen target, with a held-out curve: `python -m lib making heads --target T --kind K`."""

from functools import partial
from pathlib import Path
from typing import Mapping

import numpy as np
import pandas as pd
import torch

from lib.drafters import heads
from lib.making import data, family, loop, losses

STEPS = {"medusa": 500, "eagle": 1000, "eagle3": 600, "block": 800}  # Medusa stops improving earlier than the others
PLANS = {kind: loop.Plan(STEPS[kind], 16, 256, 1e-2, seed=11 + place) for place, kind in enumerate(heads.KINDS)}
CURVE_EVERY = 100  # steps between two points of the held-out curve
HELD_OUT_WINDOWS = 4  # of each kind of text


def make(target_name: str, kind: str, folder: Path, *, plan: loop.Plan | None = None, device: str = "cpu",
         compiled: bool = True):
    """Trains a head for a target (a member under `folder`, or as `lib.models` names models), and saves it in bfloat16.

    The head and its curve are written to folder/heads/TARGET/KIND. The target wrote half of the windows' text.
    """
    if kind not in PLANS:
        raise ValueError(f"the head's kind is {kind!r}; choose one of {', '.join(PLANS)}")
    plan = plan or PLANS[kind]
    target = family.frozen_target(target_name, folder, device)
    family.prepare(folder)
    streams = data.load_streams(folder)
    torch.manual_seed(plan.seed)  # for the initial weights; each window is a function of seed and step
    head = heads.KINDS[kind](heads.settings(kind, target.config)).to(device)
    into = folder / "heads" / Path(target_name).name / kind
    texts = family.with_own_text(target, target_name, streams, folder, plan)
    train(head, target, kind, partial(family.windows, *texts, plan), plan, into, streams.held_out, compiled=compiled)
    heads.save(head, into)
    return head


def train(head, target, kind: str, draw, plan: loop.Plan, into: Path, held_out: Mapping[str, np.ndarray], *,
          compiled: bool = True, checkpoint_every: int = 50, curve_every: int = CURVE_EVERY) -> None:
    """Trains a head in place, with checkpoints under `into`/checkpoints and the held-out curve in `into`/curve.csv.

    compiled: whether the softmax over the vocabulary is fused, which halves a step of several depths on a CPU.
    """
    output = target.get_output_embeddings()
    entropy = torch.compile(losses.cross_entropy) if compiled else losses.cross_entropy
    device = next(head.parameters()).device

    def learn(tokens: torch.Tensor, step: int) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            states = losses.LOSSES[kind](head, target, tokens, plan.generator(step))
            loss = states.by_depth(output, entropy)
        return losses.backward_apart(states.states, torch.autocast(device.type, torch.bfloat16)(loss))

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
        by_depth = losses.HELD_OUT_LOSSES[kind](head, target, tokens, torch.Generator().manual_seed(0))
        for depth, (state, true) in enumerate(zip(by_depth.states, by_depth.target_states), start=1):
            agree = output(state).argmax(-1) == output(true).argmax(-1)
            rows.append(dict(kind=text, depth=depth, nats=round(losses.cross_entropy(output, state, true).item(), 4),
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
