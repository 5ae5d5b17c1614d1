"""Recording a trace: the target continues prompts, and its continuations are read.

Recording goes batch by batch, so that an interruption loses one batch at most.
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lib.decoding import loop
from lib.decoding.checks import token_set
from lib.forward.reduced import narrow
from lib.lab import cluster, provenance
from lib.replay import trace
from lib.replay.acceptance import DEEPEST
from lib.replay.reading import AHEAD, check_models, check_prompts, read, window_of
from lib.replay.trace import Trace


@dataclass(frozen=True)
class Batch:
    """Prompts that are continued together; first: the place of the first one among all."""

    first: int
    prompts: Sequence[Tensor]
    names: Sequence[str]
    kinds: Sequence[str]


@dataclass(frozen=True)
class Settings:
    """How a batch is continued and read: see `record`."""

    max_new_tokens: int
    beyond: int
    temperature: float
    eos_token_id: tuple[int, ...]
    ahead: int
    siblings: int
    seed: object


def record(target, drafters: Mapping[str, object], prompts: Sequence[Tensor], *, names: Sequence[str],
           kinds: Sequence[str], max_new_tokens: int, beyond: int = DEEPEST + 1, temperature: float = 0.0,
           eos_token_id: int | Sequence[int] | None = None, seed: object = None, rows: int = 32,
           about: Mapping[str, object] | None = None, ahead: int = AHEAD, siblings: int = 0, parts: Path | None = None,
           report: Callable[[str, bool], None] | None = None, spread_by: object = None) -> Trace:
    """The target continues each prompt int64[T] by a root, `max_new_tokens` transitions at which rounds may start, and
    `beyond` further tokens, and the result is read.

    drafters, names, kinds, ahead, siblings: as for `read`.
    beyond: the depth of the deepest tree that will be replayed, and 1 for its bonus token, so that the trace decides
        also the rounds that start just before the limit. Deeper trees have fewer starts (see `Trace.starts`).
    seed: of sampling, a plain value; each batch has a generator of its own.
    rows: prompts in one batch.
    parts: a folder in which each finished batch is kept. A recording of the same models, prompts and settings takes the
        undamaged batches that it finds there.
    report: called after each batch with the progress as text, and whether the batch was the last.
    spread_by: what other processes make the models of, with `target` and `of_ranks` (see `protocols.Competitors`), for
        the run's workers if it has some; None: batches are recorded in this process.
    ValueError names the argument that does not fit.
    """
    check_models(target, drafters)
    check_prompts(target, prompts, names, kinds)
    _check_settings(target, prompts, max_new_tokens, beyond, temperature, seed, rows)
    facts = dict(about or {}, temperature=temperature, **origin(target, drafters, prompts))
    settings = Settings(max_new_tokens, beyond, temperature, tuple(sorted(token_set(eos_token_id))), ahead, siblings,
                        seed)
    mark = provenance.digest([facts, list(names), list(kinds), rows, vars(settings)])
    batches = [Batch(first, *(values[first : first + rows] for values in (prompts, names, kinds)))
               for first in range(0, len(prompts), rows)]
    paths = [parts / f"{batch.first:06d}.safetensors" if parts else None for batch in batches]
    traces = [_recorded_before(path, mark) for path in paths]
    missing = [batch for batch, part in zip(batches, traces) if part is None]
    if spread_by is not None and cluster.active():
        fresh = cluster.spread(_record_elsewhere, missing, settings, spread_by)
    else:
        fresh = (record_batch(target, drafters, batch, settings) for batch in missing)
    positions = 0
    for place, (batch, path) in enumerate(zip(batches, paths)):
        if traces[place] is None:
            traces[place] = next(fresh)
            if path:
                trace.save(replace(traces[place], about={"settings": mark}), path)
                traces[place] = trace.load(path)  # rounded, as a recording that continues later reads it
        positions += traces[place].positions
        if report:
            count = batch.first + len(batch.names)
            report(f"{count} of {len(prompts)} continuations, {positions:,} positions", count == len(prompts))
    return replace(trace.join(traces), about=facts)


def record_batch(target, drafters: Mapping[str, object], batch: Batch, settings: Settings) -> Trace:
    """The part of a recording that one batch makes; a function of its arguments, so that any process may make it."""
    generator = None if settings.seed is None else cluster.seeded(settings.seed, batch.first)
    sampling = {"temperature": settings.temperature, "generator": generator, "eos_token_id": settings.eos_token_id}
    written = loop.continuations(target, batch.prompts, rows=len(batch.prompts), **sampling,
                                    max_new_tokens=1 + settings.max_new_tokens + settings.beyond)
    return read(target, drafters, batch.prompts, written, names=batch.names, kinds=batch.kinds,
                limit=settings.max_new_tokens, ahead=settings.ahead, siblings=settings.siblings, **sampling)


def _record_elsewhere(batch: Batch, settings: Settings, models) -> Trace:
    return record_batch(models.target, models.of_ranks, batch, settings)


def _recorded_before(path: Path | None, mark: str) -> Trace | None:
    """A kept batch of the same settings, if there is an undamaged one."""
    if not path or not path.exists():
        return None
    try:
        part = trace.load(path)
    except ValueError:  # damaged: it is recorded again
        return None
    return part if part.about.get("settings") == mark else None


def _check_settings(target, prompts: Sequence[Tensor], new_tokens: int, beyond: int,
                    temperature: float, seed: object, rows: int) -> None:
    """ValueError if the target cannot write the continuations."""
    if min(new_tokens, beyond) < 0 or rows < 1:
        raise ValueError(f"max_new_tokens is {new_tokens}, beyond {beyond} and rows {rows}: give at least 0, 0 and 1")
    if temperature and seed is None:
        raise ValueError(f"temperature is {temperature} but seed is None: give one, so that the trace can be repeated")
    longest = max(map(len, prompts))
    needed = longest + new_tokens + beyond  # the last token is written and not read
    window = window_of(target)
    if window and needed > window:
        raise ValueError(f"the longest prompt has {longest} tokens, its continuation {new_tokens}, and {beyond} "
                         f"beyond the limit let the deepest tree end: {needed} positions, but the window of the target "
                         f"has {window}; shorten the prompt, max_new_tokens, or the trees (beyond)")


def origin(target, drafters: Mapping[str, object], prompts: Sequence[Tensor]) -> dict[str, object]:
    """Plain values for a trace's `about`: digests of the models and prompts, dtype and versions."""
    return {
        "models": {"target": model_digest(target)} | {name: model_digest(model) for name, model in drafters.items()},
        "dtype": str(target.dtype).removeprefix("torch."),
        "prompts": provenance.digest([prompt.tolist() for prompt in prompts]),
        "versions": provenance.versions(),
    }


def model_digest(model) -> str:
    """A digest of a model's folder, its commit on a hub, or a digest of its weights; for a drafter without a folder,
    the name of its class. A model that knows some of its tokens alone has another one than the whole model.
    """
    folder = getattr(model, "name_or_path", "")
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    if folder and Path(folder).is_dir():
        digest = provenance.file_digest(folder)
    elif commit:
        digest = commit
    elif not isinstance(model, torch.nn.Module):
        digest = type(model).__name__
    else:
        weights_digest = sha256()
        for name, weights in sorted(model.state_dict().items()):
            weights_digest.update(name.encode())
            weights_digest.update(weights.detach().cpu().contiguous().view(torch.uint8).numpy())
        digest = weights_digest.hexdigest()
    output = narrow(model)[1] if isinstance(model, torch.nn.Module) else None
    return digest if output is None else provenance.digest([digest, output.tokens.tolist()])
