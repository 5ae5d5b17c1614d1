"""Random heads for small targets: untrained, but with weights everywhere, so that a wrong one is seen."""

import tempfile
from functools import cache
from pathlib import Path

import torch

from lib.drafters import DRAFTERS as REGISTRY
from lib.drafters import BlockDrafter, EagleDrafter, MedusaDrafter
from lib.drafters.heads import KINDS, save, settings

DRAFTERS = {"medusa": MedusaDrafter, "eagle": EagleDrafter, "eagle3": EagleDrafter, "block": BlockDrafter}


def head(kind: str, target, seed: int = 0, **changed):
    """A random head of a kind for a target, with its dtype; `changed` are settings other than the usual ones."""
    config = settings(kind, target.config)
    for name, value in changed.items():
        setattr(config, name, value)
    torch.manual_seed(seed)
    made = KINDS[kind](config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    if hasattr(made, "d2t"):
        chosen = torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values
        made.d2t.copy_(chosen - torch.arange(len(chosen)))
    return made.to(target.dtype).eval()


@cache
def _folders() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="heads-")  # removed when the tests end


@cache
def folder(kind: str, target) -> Path | None:
    """A saved random head for a kind of drafter; None for those that have none."""
    kind = REGISTRY[kind].head
    if not kind:
        return None
    path = Path(_folders().name) / f"{kind}-{id(target)}"
    save(head(kind, target), path)
    return path
