"""Recording a trace: the target continues prompts, and its continuations are read.

Recording goes batch by batch, so that an interruption loses one batch at most.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Mapping, Sequence

from torch import Tensor
from tqdm import tqdm

from lib.decoding import loop
from lib.lab import cluster
from lib.replay import trace
from lib.replay.acceptance import DEEPEST
from lib.replay.reading import AHEAD, read, window_of
from lib.replay.trace import Trace

SECONDS = 10  # between two lines of progress


@dataclass(frozen=True)
class Batch:
    """Prompts that are continued together; first: the place of the first one among all."""

    first: int
    prompts: Sequence[Tensor]
    names: Sequence[str]
    kinds: Sequence[str]


def record(target, drafters: Mapping[str, object], prompts: Sequence[Tensor], *, names: Sequence[str],
           kinds: Sequence[str], max_new_tokens: int, beyond: int = DEEPEST + 1, temperature: float = 0.0,
           eos_token_id: int | Sequence[int] | None = None, seed: object = None, rows: int = 32,
           about: Mapping[str, object] | None = None, ahead: int = AHEAD, siblings: int = 0, parts: Path | None = None,
           title: str = "", spread_by: object = None) -> Trace:
    """The target continues each prompt int64[T] by a root, `max_new_tokens` transitions at which rounds may start, and
    `beyond` further tokens, and the result is read.

    drafters, names, kinds, ahead, siblings: as for `read`.
    beyond: the depth of the deepest tree that will be replayed, and 1 for its bonus token, so that the trace decides
        also the rounds that start just before the limit. Deeper trees have fewer starts (see `Trace.starts`).
    seed: of sampling, a plain value; each batch has a generator of its own. A temperature above 0 needs one.
    rows: prompts in one batch.
    parts: a folder for the finished batches of this recording alone; the undamaged ones that are there are taken.
    title: of the progress bar; without one there is none.
    spread_by: an object with `target` and `of_ranks` that other processes can make anew (see `protocols.Competitors`),
        so that the run's workers record batches; None: this process records them.
    ValueError where the target's window is too small.
    """
    longest, window = max(map(len, prompts)), window_of(target)
    needed = longest + max_new_tokens + beyond  # the last token is written and not read
    if window and needed > window:
        raise ValueError(f"the longest prompt has {longest} tokens, its continuation {max_new_tokens}, and {beyond} "
                         f"beyond the limit let the deepest tree end: {needed} positions, but the window of the target "
                         f"has {window}; shorten the prompt, max_new_tokens, or the trees (beyond)")
    settings = dict(max_new_tokens=max_new_tokens, beyond=beyond, temperature=temperature, eos_token_id=eos_token_id,
                    ahead=ahead, siblings=siblings, seed=seed)
    batches = [Batch(first, *(values[first : first + rows] for values in (prompts, names, kinds)))
               for first in range(0, len(prompts), rows)]
    paths = [parts / f"{batch.first:06d}.safetensors" if parts else None for batch in batches]
    traces = [_recorded_before(path) for path in paths]
    missing = [batch for batch, part in zip(batches, traces) if part is None]
    fresh = (cluster.spread(_record_elsewhere, missing, settings, spread_by) if spread_by is not None else
             (record_batch(target, drafters, batch, settings) for batch in missing))
    progress = tqdm(paths, desc=title, disable=not title, mininterval=SECONDS, file=sys.stdout, unit="batch")
    for place, path in enumerate(progress):
        if traces[place] is None:
            traces[place] = next(fresh)
            if path:
                trace.save(traces[place], path)
                traces[place] = trace.load(path)  # rounded, as a recording that continues later reads it
    return replace(trace.join(traces), about=dict(about or {}, temperature=temperature))


def record_batch(target, drafters: Mapping[str, object], batch: Batch, settings: Mapping[str, object]) -> Trace:
    """The part of a recording that one batch makes; a function of its arguments, so that any process may make it.

    settings: those arguments of `record` that are the same for all batches.
    """
    generator = None if settings["seed"] is None else cluster.seeded(settings["seed"], batch.first)
    sampling = {"temperature": settings["temperature"], "generator": generator,
                "eos_token_id": settings["eos_token_id"]}
    limit = settings["max_new_tokens"]
    written = loop.continuations(target, batch.prompts, rows=len(batch.prompts), **sampling,
                                 max_new_tokens=1 + limit + settings["beyond"])
    return read(target, drafters, batch.prompts, written, names=batch.names, kinds=batch.kinds, limit=limit,
                ahead=settings["ahead"], siblings=settings["siblings"], **sampling)


def _record_elsewhere(batch: Batch, settings: Mapping[str, object], models) -> Trace:
    return record_batch(models.target, models.of_ranks, batch, settings)


def _recorded_before(path: Path | None) -> Trace | None:
    """A finished batch, if there is an undamaged one."""
    try:
        return trace.load(path) if path and path.exists() else None
    except ValueError:  # damaged: it is recorded again
        return None
