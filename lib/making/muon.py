"""Muon in float32 (Jordan et al. 2024): torch's own orthogonalises in bfloat16, several times slower on CPUs without
AMX.
"""

from collections import defaultdict

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, chosen by its authors for speed, not for exactness
ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest matrices with singular values about 1, for each of float32[N, r, c], by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose update is orthogonalised and scaled to AdamW's usual root mean square (Liu et al.
    2025).
    """

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
