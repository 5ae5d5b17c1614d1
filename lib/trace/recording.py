"""Recording: the target continues prompts, and what it wrote is read; batch by batch, so that a stop loses one batch.
"""

from dataclasses import replace
from pathlib import Path
from typing import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lib import provenance
from lib.trace import branching, storage
from lib.trace.data import Trace, join
from lib.trace.origin import origin
from lib.trace.reading import AHEAD, read


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
    it is done; a recording of the same models, prompts and settings goes on behind the batches that it finds there,
    with the generator as the last of them left it, so that it ends as if it had never stopped. report: told
    behind every batch how far it is, and whether that was the last.
    """
    facts = dict(about or {}, temperature=temperature, **origin(target, drafters, prompts))
    state = None if generator is None else generator.get_state().tolist()
    ends = list(np.atleast_1d([] if eos_token_id is None else eos_token_id))
    asked = provenance.digest([facts, max_new_tokens, ends, rows, ahead, siblings, state])
    done: list[Trace] = []
    for first in range(0, len(prompts), rows):
        batch = slice(first, first + rows)
        path = parts / f"{first:06d}.safetensors" if parts else None
        part = _kept(path, asked)
        if part is None:
            written = branching.continuations(
                target,
                prompts[batch],
                max_new_tokens=max_new_tokens + 1,
                temperature=temperature,
                rows=rows,
                eos_token_id=eos_token_id,
                generator=generator,
            )
            rest = {"names": names[batch], "kinds": kinds[batch], "ahead": ahead, "siblings": siblings}
            rest |= {"temperature": temperature, "generator": generator}
            part = read(target, drafters, prompts[batch], written, **rest)
            part = replace(part, about={"asked": asked, "generator": _state(generator)})
            if path:
                storage.save(part, path)
        elif generator is not None:
            generator.set_state(torch.tensor(list(bytes.fromhex(part.about["generator"])), dtype=torch.uint8))
        done.append(part)
        if report:
            positions = sum(found.positions for found in done)
            count = min(first + rows, len(prompts))
            report(f"{count} of {len(prompts)} continuations, {positions:,} positions", count == len(prompts))
    return replace(join(done), about=facts)


def _kept(path: Path | None, asked: str) -> Trace | None:
    """A batch that is there already, if it was asked for in the same way."""
    if path is None or not path.exists():
        return None
    part = storage.load(path)
    return part if part.about["asked"] == asked else None


def _state(generator: torch.Generator | None) -> str:
    return "" if generator is None else bytes(generator.get_state().tolist()).hex()
