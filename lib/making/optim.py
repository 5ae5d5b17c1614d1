"""The optimiser (Muon for the matrices of the layers, AdamW for the rest) and its warm-up, constant, decay schedule."""

import torch
from torch import nn

from lib.making.muon import Muon

WARMUP_STEPS = 60
DECAY_SHARE = 0.3


def build(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon (momentum orthogonalised by Newton-Schulz steps) on hidden matrices, AdamW on embeddings and norms.

    `learning_rate` is the matrices' rate, scaled so that its updates have AdamW's root mean square; AdamW gets half
    of it.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "head" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    muon = Muon(matrices, lr=learning_rate, weight_decay=0.05)
    adam = torch.optim.AdamW(others, lr=learning_rate / 2, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for group in (*muon.param_groups, *adam.param_groups):
        group["peak"] = group["lr"]
    return [muon, adam]


def factor(step: int, steps: int) -> float:
    """The learning rate's factor at a step: linear warm-up, constant, linear decay to zero over the last 30 %.

    Only the decay depends on `steps`, so that a run stopped in its constant part can be resumed with more.
    """
    decay = max(1, round(DECAY_SHARE * steps))
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / decay)


def set_rate(optimisers: list[torch.optim.Optimizer], value: float) -> None:
    """Sets every group's rate to this share of its peak."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * value
