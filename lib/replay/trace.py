"""The trace: what a target wrote, with each drafter's rank of every token, its file, and where its text begins to loop.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from lib.lab import atomic_file, json_text

BY_ROW = ("tokens", "lengths", "ended", "loops", "target_probs")
BY_DRAFTER = ("ranks", "probs", "alpha", "chances")
PADDING = {"tokens": -1, "ranks": -1}  # values after a row's end; 0 elsewhere
INTEGERS = {"tokens": np.int32, "lengths": np.int64, "ended": bool, "loops": np.int64, "ranks": np.int32}
ABOUT = ("about", "prompts", "kinds")  # kept as texts
SHORTEST_LOOP_REPEATS = 3
LONGEST_PERIOD = 40


@dataclass(frozen=True, eq=False)
class Trace:
    """N continuations c_0 .. c_L of N prompts; transition i of a row is c_i -> c_{i+1}, the first step of a round that
    starts at i.

    tokens: int32[N, L + 1], -1 after a row's end. lengths: int64[N], the transitions before the length limit, at which
    rounds may start; the text goes on past the limit, so that it decides the last rounds to their ends. ended: bool[N],
    whether EOS ended the text, and with it the round that reached it. loops: int64[N], the transition at which a row
    begins to repeat itself to the limit, or its length.
    By transition, float[N, L], at the trace's temperature, and at temperature 1 for a greedy trace: `target_probs` of
    c_{i+1}; by drafter `ranks` (int32; -1 after the end) and `probs`, and `alpha` = sum min(p, q) of the warped
    distributions, one-hot for a greedy trace (Leviathan et al. 2023, corollary 3.6).
    Where a proposal depends on where the round started, `ranks` and `probs` are [N, L, D]: entry [n, i, d] is of
    c_{i+d+1} among the candidates d + 1 tokens ahead in a round that starts at i, without alpha.
    `chances`: float[N, L, K] by "drafter|rule|k", the input of `expectation`. `prompts` and `kinds` name the rows;
    `about` has target, temperature and the names of the choosing prompts.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    ended: np.ndarray
    loops: np.ndarray
    target_probs: np.ndarray
    ranks: Mapping[str, np.ndarray]
    probs: Mapping[str, np.ndarray]
    alpha: Mapping[str, np.ndarray]
    prompts: tuple[str, ...]
    kinds: tuple[str, ...]
    about: Mapping[str, object] = field(default_factory=dict)
    chances: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def ends(self) -> np.ndarray:
        """int64[N]: all transitions of each row, past the limit too."""
        return (self.tokens >= 0).sum(1) - 1

    def starts(self, depth: int) -> np.ndarray:
        """int64[N]: of each row's transitions the first ones, at which rounds of a tree of this depth count: before the
        limit, and unless EOS ended the text with start + depth + 1 <= end, so that the text decides the whole round.

        Leaving out the rounds that the end of a text shortens would be a bias, because long rounds are cut more often.
        """
        return np.where(self.ended, self.lengths, np.minimum(self.lengths, np.maximum(self.ends - depth, 0)))

    @property
    def without_loops(self) -> list[int]:
        """The rows whose continuation does not end in a loop."""
        return np.flatnonzero(self.loops >= self.lengths).tolist()

    @property
    def before_loops(self) -> np.ndarray:
        """bool[N, L]: the transitions of each row before its loop and the limit."""
        return np.arange(self.tokens.shape[1] - 1)[None] < np.minimum(self.loops, self.lengths)[:, None]

    def drafter_ranks(self, drafter: str | None = None) -> np.ndarray:
        """The ranks of a drafter, [N, L] or [N, L, D]; None for the first one."""
        return self.ranks[next(iter(self.ranks)) if drafter is None else drafter]

    def next_ranks(self, drafter: str | None = None) -> np.ndarray:
        """int32[N, L]: the rank of the next token at each transition."""
        ranks = self.drafter_ranks(drafter)
        return ranks if ranks.ndim == 2 else ranks[:, :, 0]

    def select(self, rows: np.ndarray) -> "Trace":
        """The trace of some rows, bool[N] or int64."""
        rows = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in BY_ROW},
            **{name: {key: array[rows] for key, array in getattr(self, name).items()} for name in BY_DRAFTER},
            prompts=tuple(self.prompts[row] for row in rows),
            kinds=tuple(self.kinds[row] for row in rows),
        )


def join(parts: Sequence[Trace]) -> Trace:
    """The rows of several traces of the same drafters, padded to the longest row; `about` is the first trace's."""
    def stacked(name: str, arrays: list[np.ndarray]) -> np.ndarray:
        if arrays[0].ndim == 1:
            return np.concatenate(arrays)
        width = max(array.shape[1] for array in arrays)
        return np.concatenate([
            np.pad(array, [(0, 0), (0, width - array.shape[1]), *[(0, 0)] * (array.ndim - 2)],
                   constant_values=PADDING.get(name, 0)) for array in arrays])

    return replace(
        parts[0],
        **{name: stacked(name, [getattr(part, name) for part in parts]) for name in BY_ROW},
        **{name: {key: stacked(name, [getattr(part, name)[key] for part in parts]) for key in getattr(parts[0], name)}
           for name in BY_DRAFTER},
        prompts=tuple(name for part in parts for name in part.prompts),
        kinds=tuple(kind for part in parts for kind in part.kinds),
    )


def packed(trace: Trace) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A trace as arrays by name, of small integers and half precision, and as texts."""
    arrays = {name: getattr(trace, name) for name in BY_ROW}
    arrays |= {f"{kind}.{name}": array for kind in BY_DRAFTER for name, array in getattr(trace, kind).items()}
    small = {}
    for name, array in arrays.items():
        kind = np.float16
        if array.dtype.kind != "f":
            low, high = int(array.min(initial=0)), int(array.max(initial=0))
            kind = next(kind for kind in (np.int8, np.int16, np.int32, np.int64)
                        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
        small[name] = np.ascontiguousarray(array.astype(kind))
    return small, {name: json.dumps(getattr(trace, name)) for name in ABOUT}


def save(trace: Trace, path: str | Path) -> None:
    """Writes a trace to one safetensors file, in one step."""
    path, (arrays, about) = Path(path), packed(trace)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.replace(path, to_bytes(arrays, metadata=about))


def load(path: str | Path) -> Trace:
    """Reads a trace that `save` wrote; probabilities are rounded to half precision.

    FileNotFoundError if there is no file; ValueError if the file is damaged or holds something else.
    """
    try:
        with safe_open(path, "numpy") as file:
            about = {name: json_text.loads(text) for name, text in (file.metadata() or {}).items()}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, json.JSONDecodeError) as reason:
        raise ValueError(f"{path} cannot be read ({reason}): delete it, and record the trace again") from None
    return unpacked(arrays, about, path)


def unpacked(arrays: Mapping[str, np.ndarray], about: Mapping[str, object], path: Path) -> Trace:
    """The trace of `packed`, with the texts' values. ValueError names the file where something is missing."""
    arrays = {name: array.astype(INTEGERS.get(name.split(".")[0], np.float32)) for name, array in arrays.items()}
    missing = {*BY_ROW, *ABOUT} - {*arrays, *about}
    if missing:
        raise ValueError(f"{path} is not a trace, or of an older version: it lacks {', '.join(sorted(missing))}; "
                         "delete it, and record the trace again")
    by_drafter = {kind: {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith(kind + ".")}
                  for kind in BY_DRAFTER}
    return Trace(**{name: arrays[name] for name in BY_ROW}, **by_drafter, prompts=tuple(about["prompts"]),
                 kinds=tuple(about["kinds"]), about=about["about"])


def loop_start(tokens: Sequence[int]) -> int:
    """The transition from which a continuation repeats a cycle of at most 40 tokens to its end, at least three times;
    the number of transitions if it does not loop.

    Small models loop in greedy continuation, and looped text increases every drafter's acceptance.
    """
    row = np.asarray(tokens)
    earliest = len(row)
    for period in range(1, min(LONGEST_PERIOD, len(row) // SHORTEST_LOOP_REPEATS) + 1):
        differs = np.flatnonzero(row[:-period] != row[period:])
        start = int(differs[-1]) + 1 if len(differs) else 0
        if len(row) - start >= max(SHORTEST_LOOP_REPEATS * period, 8):
            earliest = min(earliest, start + period)
    return min(earliest, len(row) - 1)


def loops(tokens: Sequence[int]) -> bool:
    """Whether a continuation ends in a loop (see `loop_start`)."""
    return loop_start(tokens) < len(tokens) - 1
