"""The training loop, seeded by step, with checkpoints from which it resumes, and its optimisers."""

import math
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lib.models.checks import own_dtype

WARMUP_STEPS = 60
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

    def fitting(self, done: int, seconds: float) -> int:
        """The steps that fit into the hours, those included that are done and took so many seconds."""
        return int(min(self.steps, done * max(1.0, 3600 * self.hours / seconds))) if done else self.steps


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
    return [muon, torch.optim.AdamW(others, lr=learning_rate / 2, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


def rate_factor(step: int, steps: int, decay: float) -> float:
    """The learning rate's factor at a step: linear warm-up, constant, linear decay to zero over the last steps, this
    share of all.

    Only the decay depends on `steps`, so a run that was stopped in its constant part can be resumed with more steps.
    """
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / max(1, round(decay * steps)))


def run(trained: Mapping[str, nn.Module], draw: Callable[[int], Tensor], plan: TrainingPlan,
        learn: Callable[[Tensor, int], Tensor], evaluate: Callable[[], Mapping[str, pd.DataFrame]], into: Path) -> None:
    """Trains modules by name, side by side and in place, from the checkpoint in `into`/checkpoints if there is one.

    draw(step): the windows of a step. learn(windows, step): leaves gradients in the modules and returns the loss.
    evaluate(): the points of the held-out curves of modules, which `into`/NAME/curve.csv has by step.
    """
    model, checkpoint = nn.ModuleDict(trained), into / "checkpoints" / f"{'+'.join(trained)}.safetensors"
    optimisers, device = optimisers_of(model, plan.learning_rate), next(model.parameters()).device
    step, seconds = _resume(model, optimisers, checkpoint) if checkpoint.exists() else (0, 0.0)
    peaks = [(group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups]
    saved = time.perf_counter()
    begin, steps = saved - seconds, plan.fitting(step, seconds)
    while step < steps:
        for group, peak in peaks:
            group["lr"] = peak * rate_factor(step, steps, plan.decay)
        loss = learn(draw(step).to(device), step)
        for module in trained.values():  # each alone, so that it learns the same beside others
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step, now = step + 1, time.perf_counter()
        steps = plan.fitting(step, now - begin)
        if step == steps or step % CURVE_STEPS == 0:
            print(*trained, f"step={step} of {steps} loss={loss.item():.4g} hours={(now - begin) / 3600:.3g}", flush=True)
            for name, points in evaluate().items():
                _extend_curve(into / name / "curve.csv", step, points)
        if step == steps or now - saved >= CHECKPOINT_SECONDS:
            _save(model, optimisers, checkpoint, step, now - begin)
            saved = now


def _extend_curve(path: Path, step: int, points: pd.DataFrame) -> None:
    """Adds the points of a step to a curve; points from this step on, of an interrupted run, are replaced."""
    points.insert(0, "step", step)
    with suppress(FileNotFoundError):
        earlier = pd.read_csv(path)
        points = pd.concat([earlier[earlier["step"] < step], points])
    path.parent.mkdir(parents=True, exist_ok=True)
    points.to_csv(path, index=False)


def _save(model: nn.Module, optimisers: list, path: Path, step: int, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"step": torch.tensor(step), "seconds": torch.tensor(seconds)}
    tensors |= {f"model.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
    for index, optimiser in enumerate(optimisers):
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{number}.{name}": value for name, value in state.items()}
    save_file(tensors, path.with_suffix(".partial"))
    os.replace(path.with_suffix(".partial"), path)


def _resume(model: nn.Module, optimisers: list, path: Path) -> tuple[int, float]:
    """The steps that the checkpoint has, which is loaded, and the seconds that they took."""
    tensors = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    states = [defaultdict(dict) for _ in optimisers]
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, number, name = key.split(".")
            states[int(index)][int(number)][name] = value
    for optimiser, state in zip(optimisers, states):
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(tensors["step"]), float(tensors["seconds"])
