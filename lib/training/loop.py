"""The training loop: plain or distillation, seeded by step, with checkpoints from which it resumes."""

import math
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Sequence

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from lib.training import optim
from lib.models.checks import own_dtype

ROWS_PER_PASS = 8  # windows of one pass: the activations of more do not fit the caches
REPORT_STEPS, REPORT_SECONDS = 20, 60  # a report comes after the one or the other
CHECKPOINT_SECONDS = 300  # what a stopped training loses at most
SILENCE = 10  # seconds between two lines of progress of what comes before a training

# (logits [B, T, V], tokens [B, T + 1]) -> loss in nats per token
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """A training run: steps of rows x length tokens, with a peak learning rate and a seed.

    decay: the share of the steps, the last ones, over which the learning rate falls to zero.
    hours: the most that it may take; fewer steps are made where these do not fit, and the schedule ends with them.
    """

    steps: int
    rows: int
    length: int
    learning_rate: float
    seed: int
    decay: float = 0.3
    hours: float = math.inf

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return self.steps * self.rows * self.length

    def generator(self, step: int) -> torch.Generator:
        """The randomness of a step, a function of the seed and the step, so that a run can resume."""
        return torch.Generator().manual_seed(1_000_003 * self.seed + step)

    def fitting(self, done: int, spent: float) -> int:
        """The steps that fit into the hours, those included that are done and took so many seconds."""
        return int(min(self.steps, done * max(1.0, 3600 * self.hours / spent))) if done else self.steps


def counted(items: Sequence, what: str, report: Callable[[str], None] = partial(print, flush=True)) -> Iterator:
    """The items, with a line of progress after SILENCE seconds without one, and after the last."""
    spoken = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if number == len(items) or time.monotonic() - spoken > SILENCE:
            spoken = time.monotonic()
            report(f"{what}: {number:,} of {len(items):,}")


def autocast(device: torch.device):
    """bfloat16 where the processor has units for it; elsewhere its products are hundreds of times slower."""
    return torch.autocast(device.type, torch.bfloat16, enabled=own_dtype(device) == torch.bfloat16)


def plain_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token, in nats."""
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def distilling_loss(teacher: nn.Module) -> Loss:
    """The `divergence` of the student's next-token distributions from the teacher's (Zhou et al. 2024, DistillSpec)."""

    def loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), autocast(logits.device):
            teacher_logits = teacher(tokens[:, :-1]).logits
        return divergence(logits, teacher_logits)

    return loss


def divergence(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student), in nats per token, from logits [..., V] of both."""
    probs, log_probs = F.softmax(teacher_logits.float(), dim=-1), F.log_softmax(logits.float(), dim=-1)
    return F.kl_div(log_probs, probs, reduction="none").sum(-1).mean()


def train(model: nn.Module, draw: Callable[[int], torch.Tensor], plan: Plan, loss: Loss, folder: Path, *,
          compiled: bool = True, checkpoint_seconds: float = CHECKPOINT_SECONDS,
          report: Callable[[dict], None] = print) -> dict:
    """Trains in place, from the checkpoint in `folder` if there is one, and returns the last report.

    draw(step): the windows of a step, int64[rows, length + 1]. A report has step, loss, tokens, tokens per second and
    the hours that are left.
    """
    device = next(model.parameters()).device

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        with autocast(device):
            logits = model(tokens[:, :-1], use_cache=False).logits
        return loss(logits, tokens)

    # model and loss in one graph: the softmax over the vocabulary is fused, which saves a quarter of a step on a CPU
    forward = torch.compile(forward) if compiled else forward

    def learn(tokens: torch.Tensor, step: int) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for rows in tokens.split(ROWS_PER_PASS):
            value = forward(rows) * (len(rows) / len(tokens))
            value.backward()
            total += value.detach()
        return total

    return run(model, draw, plan, learn, folder, checkpoint_seconds=checkpoint_seconds, report=report)


def run(model: nn.Module, draw: Callable[[int], torch.Tensor], plan: Plan,
        learn: Callable[[torch.Tensor, int], torch.Tensor], folder: Path, *,
        checkpoint_seconds: float = CHECKPOINT_SECONDS, report: Callable[[dict], None] = print) -> dict:
    """The loop of `train` for any loss: `learn(tokens, step)` leaves gradients in the model and returns the loss."""
    optimisers = optim.build(model, plan.learning_rate)
    device = next(model.parameters()).device
    step, before = _resume(model, optimisers, folder)
    model.train()
    steps, summed, done, record = plan.fitting(step, before), 0.0, 0, {}
    begin = since = saved = time.perf_counter()
    while step < steps:
        optim.set_rate(optimisers, optim.factor(step, steps, plan.decay))
        value = learn(draw(step).to(device), step)
        for part in model.values() if isinstance(model, nn.ModuleDict) else [model]:  # heads, which learn side by side
            nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        summed, done, step, now = summed + value.item(), done + 1, step + 1, time.perf_counter()
        steps = plan.fitting(step, before + now - begin)
        if step == steps or step % REPORT_STEPS == 0 or now - since > REPORT_SECONDS:
            record = dict(step=step, loss=summed / done, tokens=step * plan.rows * plan.length,
                          tokens_a_second=done * plan.rows * plan.length / (now - since),
                          hours_left=(steps - step) * (now - since) / done / 3600)
            report(record)
            summed, done, since = 0.0, 0, time.perf_counter()
        if step == steps or time.perf_counter() - saved >= checkpoint_seconds:
            _save(model, optimisers, folder, step, before + now - begin)
            saved = time.perf_counter()
    model.eval()
    return record


@torch.no_grad()
def held_out_loss(model: nn.Module, stream, length: int, rows: int) -> float:
    """Mean loss in nats per token over evenly spaced windows of a held-out stream (uint16[N])."""
    starts = [int(i * (len(stream) - length - 1) / max(1, rows - 1)) for i in range(rows)]
    tokens = torch.stack([torch.from_numpy(stream[at : at + length + 1].astype("int64")) for at in starts])
    device = next(model.parameters()).device
    losses = [plain_loss(model(batch[:, :-1].to(device)).logits, batch.to(device)).item() * len(batch)
              for batch in tokens.split(8)]
    return sum(losses) / rows


def _save(model: nn.Module, optimisers: list, folder: Path, step: int, spent: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"step": torch.tensor(step), "seconds": torch.tensor(spent)}
    tensors |= {f"model.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
    for index, optimiser in enumerate(optimisers):
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{number}.{key}": torch.as_tensor(value) for key, value in state.items()}
    temporary = folder / "checkpoint.partial"
    save_file(tensors, temporary)
    os.replace(temporary, folder / "checkpoint.safetensors")


def _resume(model: nn.Module, optimisers: list, folder: Path) -> tuple[int, float]:
    """The steps that the checkpoint has, which is loaded, and the seconds that they took; none without one."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0, 0.0
    tensors = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    for index, optimiser in enumerate(optimisers):
        kept: dict[int, dict] = {}
        for key, value in tensors.items():
            if key.startswith(f"optimiser.{index}."):
                _, _, number, field = key.split(".", 3)
                kept.setdefault(int(number), {})[field] = value
        optimiser.load_state_dict({"state": kept, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(tensors["step"]), float(tensors["seconds"])
