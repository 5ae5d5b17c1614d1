"""What a trace was made from: models and prompts by hash, number format, versions."""

from hashlib import sha256
from pathlib import Path
from typing import Mapping, Sequence

import torch
from torch import Tensor

from lib.lab import provenance


def origin(target, drafters: Mapping[str, object], prompts: Sequence[Tensor]) -> dict[str, object]:
    """Plain values for a trace's `about`: models, dtype, prompts, versions."""
    return {
        "models": {"target": model_digest(target)} | {name: model_digest(model) for name, model in drafters.items()},
        "dtype": str(target.dtype).removeprefix("torch."),
        "prompts": prompts_digest(prompts),
        "versions": provenance.versions(),
    }


def prompts_digest(prompts: Sequence[Tensor]) -> str:
    """Prompts int64[T] by their tokens, in their order."""
    return provenance.digest([prompt.tolist() for prompt in prompts])


def model_digest(model) -> str:
    """A model by its folder's content, by its commit on a hub, or else by its weights; other drafters by their class.
    """
    folder = getattr(model, "name_or_path", "")
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    if folder and Path(folder).is_dir():
        return provenance.file_digest(folder)
    if commit:
        return commit
    if not isinstance(model, torch.nn.Module):
        return type(model).__name__
    found = sha256()
    for name, weights in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(weights.detach().cpu().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
