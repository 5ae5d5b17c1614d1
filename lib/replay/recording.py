"""Recording: the target continues prompts, and what it wrote is read; batch by batch, so that a stop loses one batch.
"""

from dataclasses import replace
from pathlib import Path
from typing import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lib.lab import provenance
from lib.replay import prefill, storage
from lib.replay.checks import check_models, check_prompts, check_recording, language_models
from lib.replay.origin import origin
from lib.replay.reading import AHEAD, read
from lib.replay.trace import Trace, join


def record(
    target,
    drafters: Mapping[str, object],
    prompts: Sequence[Tensor],
    *,
    names: Sequence[str],
    kinds: Sequence[str],
    max_new_tokens: int,
    temperature: float = 0.0,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    rows: int = 32,
    about: Mapping[str, object] | None = None,
    ahead: int = AHEAD,
    siblings: int = 0,
    parts: Path | None = None,
    report: Callable[[str, bool], None] | None = None,
) -> Trace:
    """Lets the target continue prompts int64[T] by a root and `max_new_tokens` transitions, and reads the result.

    drafters, ahead, siblings: as `read` takes them. parts: a folder in which each batch of `rows` prompts is kept as
    it is done; a recording of the same models, prompts and settings takes the whole ones that it finds there,
    with the generator as the last of them left it, so that it ends as if it had never stopped. report: told
    behind every batch how far it is, and whether that was the last. ValueError names what cannot be asked for.
    """
    check_models(target, drafters)
    check_prompts(target, prompts, names, kinds)
    models = {"the target": target, **language_models(drafters)}
    check_recording(models, prompts, max_new_tokens, temperature, generator, rows)
    facts = dict(about or {}, temperature=temperature, **origin(target, drafters, prompts))
    state = None if generator is None else generator.get_state().tolist()
    ends = list(np.atleast_1d([] if eos_token_id is None else eos_token_id))
    asked = provenance.digest([facts, list(names), list(kinds), max_new_tokens, ends, rows, ahead, siblings, state])
    continued = {"max_new_tokens": max_new_tokens + 1, "rows": rows, "eos_token_id": eos_token_id}
    both = {"temperature": temperature, "generator": generator}
    done: list[Trace] = []
    for first in range(0, len(prompts), rows):
        batch = slice(first, first + rows)
        path = parts / f"{first:06d}.safetensors" if parts else None
        part = _kept(path, asked, generator)
        if part is None:
            written = prefill.continuations(target, prompts[batch], **continued, **both)
            about = {"names": names[batch], "kinds": kinds[batch], "ahead": ahead, "siblings": siblings}
            part = read(target, drafters, prompts[batch], written, **about, **both)
            _keep(part, path, asked, generator)
        done.append(part)
        if report:
            count, positions = min(first + rows, len(prompts)), sum(found.positions for found in done)
            report(f"{count} of {len(prompts)} continuations, {positions:,} positions", count == len(prompts))
    return replace(join(done), about=facts)


def _keep(part: Trace, path: Path | None, asked: str, generator: torch.Generator | None) -> None:
    """Keeps a batch with what it was asked for, and the state in which it left the generator."""
    if path:
        state = "" if generator is None else bytes(generator.get_state().tolist()).hex()
        storage.save(replace(part, about={"asked": asked, "generator": state}), path)


def _kept(path: Path | None, asked: str, generator: torch.Generator | None) -> Trace | None:
    """A batch that is there already, whole and asked for in the same way; it leaves the generator as it once did."""
    if not path or not path.exists():
        return None
    try:
        part = storage.load(path)
    except ValueError:  # damaged: recorded anew
        return None
    if part.about.get("asked") != asked:
        return None
    if generator is not None:
        generator.set_state(torch.tensor(list(bytes.fromhex(part.about["generator"])), dtype=torch.uint8))
    return part
