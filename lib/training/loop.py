"""The training loop, seeded by step, with checkpoints from which it resumes, and its optimisers."""

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib.models.checks import own_dtype

WARMUP_STEPS = 60
REPORT_STEPS, REPORT_SECONDS = 20, 60  # a report comes after the one or the other
CURVE_STEPS = 100  # between two points of a held-out curve
CHECKPOINT_SECONDS = 300  # what a stopped training loses at most


@dataclass(frozen=True)
class TrainingPlan:
    """A training run: steps of rows x length tokens, with a peak learning rate and a seed.

    decay: the share of the steps, the last ones, over which the learning rate falls to zero.
    temperature: of both distributions where one model learns another's.
    hours: the most that it may take; fewer steps are made where these do not fit, and the schedule ends with them.
    """

    steps: int
    rows: int
    length: int
    learning_rate: float
    seed: int
    decay: float = 0.3
    hours: float = math.inf
    temperature: float = 1.0

    def generator(self, step: int) -> torch.Generator:
        """The randomness of a step, a function of the seed and the step, so that a run can resume."""
        return torch.Generator().manual_seed(1_000_003 * self.seed + step)

    def fitting(self, done: int, spent: float) -> int:
        """The steps that fit into the hours, those included that are done and took so many seconds."""
        return int(min(self.steps, done * max(1.0, 3600 * self.hours / spent))) if done else self.steps


def autocast(device: torch.device):
    """bfloat16 where the processor has units for it; elsewhere its products are hundreds of times slower."""
    return torch.autocast(device.type, torch.bfloat16, enabled=own_dtype(device) == torch.bfloat16)


def optimisers_of(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for hidden matrices, AdamW for embeddings, norms and output layers.

    learning_rate: of the matrices, whose updates have AdamW's root mean square; AdamW has half of it.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "head" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    muon = torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=learning_rate / 2, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for group in (*muon.param_groups, *adam.param_groups):
        group["peak"] = group["lr"]
    return [muon, adam]


def rate_factor(step: int, steps: int, decay: float) -> float:
    """The learning rate's factor at a step: linear warm-up, constant, linear decay to zero over the last steps, this
    share of all.

    Only the decay depends on `steps`, so a run that was stopped in its constant part can be resumed with more steps.
    """
    falling = max(1, round(decay * steps))
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / falling)


def extend_curve(path: Path, step: int, points: pd.DataFrame) -> None:
    """Adds the points of a step to a curve; points from this step on, of an interrupted run, are replaced."""
    points.insert(0, "step", step)
    with suppress(FileNotFoundError):
        earlier = pd.read_csv(path)
        points = pd.concat([earlier[earlier["step"] < step], points])
    path.parent.mkdir(parents=True, exist_ok=True)
    points.to_csv(path, index=False)


def run(model: nn.Module, draw: Callable[[int], torch.Tensor], plan: TrainingPlan,
        learn: Callable[[torch.Tensor, int], torch.Tensor], folder: Path, *,
        checkpoint_seconds: float = CHECKPOINT_SECONDS, report: Callable[[dict], None] = print) -> dict:
    """Trains in place, from the checkpoint in `folder` if there is one, and returns the last report.

    draw(step): the windows of a step. learn(windows, step): leaves gradients in the model and returns the loss. A
    report has step, loss, tokens, tokens per second and the hours that are left.
    """
    optimisers = optimisers_of(model, plan.learning_rate)
    device = next(model.parameters()).device
    step, before = _resume(model, optimisers, folder)
    model.train()
    steps, summed, done, record = plan.fitting(step, before), 0.0, 0, {}
    begin = since = saved = time.perf_counter()
    while step < steps:
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            group["lr"] = group["peak"] * rate_factor(step, steps, plan.decay)
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
        states: dict[int, dict] = {}
        for key, value in tensors.items():
            if key.startswith(f"optimiser.{index}."):
                _, _, number, field = key.split(".", 3)
                states.setdefault(int(number), {})[field] = value
        optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(tensors["step"]), float(tensors["seconds"])
