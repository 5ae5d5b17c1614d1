"""Random heads for small targets: untrained, but with weights everywhere, so that tests notice a wrong one."""

import tempfile
from functools import cache
from pathlib import Path

import torch

from lib.drafters.eagle3 import Eagle3Drafter
from lib.drafters.heads.files import KINDS, NGRAMS, save
from lib.drafters.marginals import DFlashDrafter, DSparkDrafter, MedusaDrafter
from lib.drafters.registry import DRAFTERS as REGISTRY
from lib.drafters.registry import FOLDER
from lib.drafters.text_drafters import save_tables
from lib.drafters.text_index import NgramTables
from lib.training.heads import settings

DRAFTERS = {"medusa": MedusaDrafter, "eagle3": Eagle3Drafter, "dflash": DFlashDrafter, "dspark": DSparkDrafter}


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
    if made.tokens is not None:
        made.tokens.copy_(torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values)
    return made.to(target.dtype).eval()


def tables(vocabulary: int) -> NgramTables:
    """Tables with a next token after every token, and after some contexts of two."""
    following = {(token,): (3 * token + 1) % vocabulary for token in range(vocabulary)}
    contexts = [divmod(number, vocabulary) for number in range(0, vocabulary**2, 5)]
    return NgramTables((following, dict.fromkeys(contexts, 0)), vocabulary)


@cache
def _folders() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="heads-")  # removed when the tests end


@cache
def folder(kind: str, target) -> Path | None:
    """A saved random head, or tables, for a kind of drafter; None for those that need none."""
    if REGISTRY[kind].needs != FOLDER:
        return None
    path = Path(_folders().name) / f"{kind}-{id(target)}"
    if kind == NGRAMS:
        save_tables(tables(target.config.vocab_size), path, {})
    else:
        save(head(kind, target), path)
    return path
