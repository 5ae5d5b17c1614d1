"""The optimiser, Muon for the matrices of the layers and AdamW for the rest, and its learning-rate schedule.

This Muon (Jordan et al. 2024) works in float32: torch's own orthogonalises in bfloat16, which is several times slower
on processors without AMX.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn

WARMUP_STEPS = 60
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, chosen by its authors for speed, not for exactness
ITERATIONS = 5


def build(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon (momentum orthogonalised by Newton-Schulz steps) on hidden matrices, AdamW on embeddings and norms.

    `learning_rate` is the rate of the matrices, whose updates have AdamW's root mean square; AdamW has half of it.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "head" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    muon = Muon(matrices, lr=learning_rate, weight_decay=0.05)
    adam = torch.optim.AdamW(others, lr=learning_rate / 2, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for group in (*muon.param_groups, *adam.param_groups):
        group["peak"] = group["lr"]
    return [muon, adam]


def factor(step: int, steps: int, decay: float) -> float:
    """The learning rate's factor at a step: linear warm-up, constant, linear decay to zero over the last steps, this
    share of all.

    Only the decay depends on `steps`, so a run that was stopped in its constant part can be resumed with more steps.
    """
    falling = max(1, round(decay * steps))
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / falling)


def set_rate(optimisers: list[torch.optim.Optimizer], value: float) -> None:
    """Sets the rate of each group to this share of its peak."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * value


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1 for each of float32[N, r, c], by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum with an orthogonalised update, scaled to AdamW's usual root mean square (Liu et al. 2025)."""

    def __init__(self, matrices: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(matrices, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self) -> None:
        """One update; matrices of one shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for (rows, columns), matrices in by_shape.items():
                updates = orthogonalise(torch.stack([self._momentum(matrix, group["momentum"]) for matrix in matrices]))
                scale = 0.2 * max(rows, columns) ** 0.5
                for matrix, update in zip(matrices, updates):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        state["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(state["momentum_buffer"], momentum)
