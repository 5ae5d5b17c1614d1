"""Traces: the target's own continuation of prompts, with what each drafter thought at each position; recorded once."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from lib.decoding import continuations
from lib.verify import warp

SHORTEST_LOOP_REPEATS = 3
LONGEST_PERIOD = 40
BATCH_TOKENS = 8192  # tokens of one teacher-forced forward


@dataclass(frozen=True)
class Trace:
    """N continuations c_0 .. c_L of N prompts; transition i of a row is c_i -> c_{i+1}, what a round starting at i
    meets first.

    tokens int32[N, L + 1], -1 behind a row's end; lengths int64[N]: transitions of each row (EOS or the limit ended
    it). By transition, [N, L]: `target_probs` of c_{i+1} and `target_entropy` (nats) under the warped target; and by
    drafter `ranks` (int32; -1 behind the end), `probs` and `alpha` = sum min(p, q), Leviathan et al. 2023, eq. 3.
    `loops` int64[N]: the transition at which a row begins to repeat itself for good, or its length.
    `prompts` and `kinds` name the rows; `about` says protocol, temperature, models and versions.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    loops: np.ndarray
    target_probs: np.ndarray
    target_entropy: np.ndarray
    ranks: Mapping[str, np.ndarray]
    probs: Mapping[str, np.ndarray]
    alpha: Mapping[str, np.ndarray]
    prompts: tuple[str, ...]
    kinds: tuple[str, ...]
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Transitions in all."""
        return int(self.lengths.sum())

    def drafter_ranks(self, drafter: str | None = None) -> np.ndarray:
        """The ranks of a drafter; the name may be left out where there is one."""
        if drafter is None and len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        if drafter not in self.ranks:
            raise ValueError(f"the trace has no drafter {drafter!r}; it has {', '.join(self.ranks)}")
        return self.ranks[drafter]


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
) -> Trace:
    """Lets the target continue prompts int64[T] by a root and `max_new_tokens` transitions, and reads the result.

    `drafters` are causal language models of the target's vocabulary, whose proposal depends on the path alone.
    """
    written = continuations(
        target,
        prompts,
        max_new_tokens=max_new_tokens + 1,
        temperature=temperature,
        rows=rows,
        eos_token_id=eos_token_id,
        generator=generator,
    )
    return read(target, drafters, prompts, written, names=names, kinds=kinds, temperature=temperature, about=about)


@torch.inference_mode()
def read(
    target,
    drafters: Mapping[str, object],
    prompts: Sequence[Tensor],
    written: Sequence[Sequence[int]],
    *,
    names: Sequence[str],
    kinds: Sequence[str],
    temperature: float = 0.0,
    about: Mapping[str, object] | None = None,
) -> Trace:
    """The trace of continuations that are there already, each at least a root: target and drafters in large forwards.
    """
    lengths = np.array([len(row) - 1 for row in written])
    width = max(1, int(lengths.max(initial=0)))
    tokens = np.full((len(written), width + 1), -1, dtype=np.int32)
    for i, row in enumerate(written):
        tokens[i, : len(row)] = row
    arrays = _read_all(target, drafters, prompts, written, temperature, width)
    per = {kind: {name: arrays[f"{kind}.{name}"] for name in drafters} for kind in ("ranks", "probs", "alpha")}
    return Trace(
        tokens,
        lengths,
        np.array([loop_start(row) for row in written]),
        arrays["target_probs"],
        arrays["target_entropy"],
        **per,
        prompts=tuple(names),
        kinds=tuple(kinds),
        about=dict(about or {}, temperature=temperature),
    )


def _read_all(target, drafters, prompts, written, temperature: float, width: int) -> dict[str, np.ndarray]:
    fields = ["target_probs", "target_entropy"] + [
        f"{kind}.{name}" for name in drafters for kind in ("ranks", "probs", "alpha")
    ]
    read = {
        name: np.full((len(written), width), -1, np.int32)
        if name.startswith("ranks.")
        else np.zeros((len(written), width), np.float32)
        for name in fields
    }
    texts = [torch.cat([prompt, torch.tensor(row[:-1], dtype=torch.long)]) for prompt, row in zip(prompts, written)]
    order = np.argsort([len(text) for text in texts], kind="stable")
    rows = max(1, BATCH_TOKENS // max(map(len, texts)))
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        padded = torch.nn.utils.rnn.pad_sequence([texts[i] for i in batch], batch_first=True)
        where = [(i, len(prompts[i]), len(written[i]) - 1) for i in batch]
        reading = _read(
            target,
            drafters,
            padded,
            [(start, count) for _, start, count in where],
            torch.tensor([token for i in batch for token in written[i][1:]]),
            temperature,
        )
        row = np.concatenate([np.full(count, i) for i, _, count in where])
        column = np.concatenate([np.arange(count) for *_, count in where])
        for name, values in reading.items():
            read[name][row, column] = values.cpu().numpy()
    return read


def _read(
    target, drafters, padded: Tensor, spans: list[tuple[int, int]], said: Tensor, temperature: float
) -> dict[str, Tensor]:
    """One batch: distributions at each row's span (start, count) of the right-padded texts, flattened over rows."""

    def logits(model) -> Tensor:
        out = model(padded.to(model.device)).logits
        return torch.cat([out[row, start : start + count] for row, (start, count) in enumerate(spans)]).float()

    wanted = warp(logits(target), temperature)
    said = said.to(wanted.device)
    chosen = wanted.gather(1, said[:, None])[:, 0]
    reading = {"target_probs": chosen, "target_entropy": -(wanted * wanted.clamp_min(1e-30).log()).sum(-1)}
    for name, model in drafters.items():
        scores = logits(model)[:, : wanted.shape[1]]
        proposal = torch.softmax(scores / temperature if temperature else scores, dim=-1)
        reading[f"ranks.{name}"] = rank_of(scores, said)
        reading[f"probs.{name}"] = proposal.gather(1, said[:, None])[:, 0]
        reading[f"alpha.{name}"] = torch.minimum(wanted, warp(scores, temperature)).sum(-1)
    return reading


def rank_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """The rank of tokens int64[S] in scores [S, V]: how many score higher, or as high with a lower index. int64[S]."""
    own = scores.gather(1, tokens[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < tokens[:, None]
    return (scores > own).sum(1) + ((scores == own) & lower).sum(1)


def loop_start(tokens: Sequence[int]) -> int:
    """The transition from which a continuation repeats a cycle of at most 40 tokens to its end, at least three times
    over.

    The length of the continuation in transitions where it does not.
    """
    row = np.asarray(tokens)
    best = len(row)
    for period in range(1, min(LONGEST_PERIOD, len(row) // SHORTEST_LOOP_REPEATS) + 1):
        differs = np.flatnonzero(row[:-period] != row[period:])
        start = int(differs[-1]) + 1 if len(differs) else 0
        if len(row) - start >= max(SHORTEST_LOOP_REPEATS * period, 8):
            best = min(best, start + period)
    return min(best, len(row) - 1)


def save(trace: Trace, path: Path) -> None:
    """Writes a trace as safetensors, probabilities in half precision, atomically."""
    arrays = {name: getattr(trace, name) for name in ("tokens", "lengths", "loops")}
    arrays |= {name: getattr(trace, name).astype(np.float16) for name in ("target_probs", "target_entropy")}
    for drafter in trace.ranks:
        arrays[f"ranks.{drafter}"] = np.minimum(trace.ranks[drafter], np.iinfo(np.int32).max)
        arrays |= {f"{kind}.{drafter}": getattr(trace, kind)[drafter].astype(np.float16) for kind in ("probs", "alpha")}
    about = {
        "about": json.dumps(dict(trace.about)),
        "prompts": json.dumps(trace.prompts),
        "kinds": json.dumps(trace.kinds),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial, metadata=about)
    os.replace(partial, path)


def load(path: Path) -> Trace:
    """Reads a trace that `save` wrote."""
    with safe_open(path, "numpy") as file:
        about, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    by = {
        kind: {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith(kind + ".")}
        for kind in ("ranks", "probs", "alpha")
    }
    plain = {name: arrays[name] for name in ("tokens", "lengths", "loops", "target_probs", "target_entropy")}
    return Trace(
        **plain,
        **by,
        prompts=tuple(json.loads(about["prompts"])),
        kinds=tuple(json.loads(about["kinds"])),
        about=json.loads(about["about"]),
    )
