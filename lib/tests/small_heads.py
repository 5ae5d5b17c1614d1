"""Random heads for small targets: untrained, but with weights everywhere, so that a wrong one is seen."""

import tempfile
from functools import cache
from pathlib import Path

import torch

from lib.drafters import DRAFTERS as REGISTRY
from lib.drafters import ngram_tables
from lib.drafters.block import BlockDrafter
from lib.drafters.eagle import EagleDrafter
from lib.drafters.heads.store import KINDS, save, settings
from lib.drafters.medusa import MedusaDrafter

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


def tables(vocabulary: int) -> ngram_tables.NgramTables:
    """Tables that name something behind every token, and behind some contexts of two."""
    behind = {token: (3 * token + 1) % vocabulary for token in range(vocabulary)}
    return ngram_tables.NgramTables((behind, {key: 0 for key in range(0, vocabulary**2, 5)}), vocabulary)


@cache
def _folders() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="heads-")  # removed when the tests end


@cache
def folder(kind: str, target) -> Path | None:
    """A saved random head, or tables, for a kind of drafter; None for those that need none."""
    kind = REGISTRY[kind].head
    if not kind:
        return None
    path = Path(_folders().name) / f"{kind}-{id(target)}"
    if kind == ngram_tables.KIND:
        ngram_tables.save(tables(target.config.vocab_size), path, {})
    else:
        save(head(kind, target), path)
    return path
